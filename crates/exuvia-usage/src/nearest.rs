//! Names that look like a misspelt one.

/// How many names are offered at most.
const OFFERED: usize = 3;

/// The names that are close enough to this one to be meant, the closest first.
///
/// ```
/// use exuvia_usage::nearest;
///
/// let all = ["widgets.example.com", "routes.example.com"];
/// assert_eq!(nearest("widgts.example.com", all), ["widgets.example.com"]);
/// assert!(nearest("things.example.org", all).is_empty());
/// ```
pub fn nearest<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_lowercase();
    // A longer name may have more typos. In a short one, such as a plural, one letter makes another word.
    let most = (name.len() / 5).clamp(1, 3);
    let mut near: Vec<(usize, &str)> = all
        .into_iter()
        .map(|other| (strsim::osa_distance(&name, &other.to_lowercase()), other))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(OFFERED).map(|(_, other)| other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_changed_places_are_one_mistake() {
        assert_eq!(nearest("covnert", ["convert"]), ["convert"]);
        assert_eq!(nearest("statsu", ["status", "statute"]), ["status"]);
        assert!(nearest("kitten", ["sitting"]).is_empty());
    }
}
