//! Names that look like a misspelt one.

/// How many names are offered at most.
const OFFERED: usize = 3;

/// The names that are close enough to this one to be meant, the closest first.
///
/// ```
/// use exuvia_api::nearest;
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
        .map(|other| (distance(&name, &other.to_lowercase()), other))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(OFFERED).map(|(_, other)| other).collect()
}

/// How many letters have to be inserted, removed or changed, or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = above[j] + usize::from(a[i] != b[j]);
            let mut least = changed.min(row[j] + 1).min(above[j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted() {
        for (a, b, wanted) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("covnert", "convert", 1),
            ("statsu", "status", 1),
        ] {
            assert_eq!(distance(a, b), wanted, "{a} {b}");
            assert_eq!(distance(b, a), wanted, "{b} {a}");
        }
    }
}
