//! Numbers of things, in words.

/// So many of something, in words: `1 object`, `2 objects`.
///
/// ```
/// use exuvia_api::counted;
///
/// assert_eq!(counted(1, "object"), "1 object");
/// assert_eq!(counted(0, "object"), "0 objects");
/// assert_eq!(counted(2, "policy"), "2 policies");
/// ```
pub fn counted(number: u64, what: &str) -> String {
    match (number, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{number} {stem}ies"),
        _ => format!("{number} {what}s"),
    }
}
