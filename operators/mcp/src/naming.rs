//! What the children of a server are called. Pure.

use crate::api::{PART_LABEL, SERVER_LABEL};

/// How long the name of a server may be. The pods of the `StatefulSet` `<name>-backend` have a label with that name and a
/// hash of up to 11 characters, and a label has at most 63.
pub const MAX_NAME: usize = 44;

/// The `StatefulSet`, its headless Service, and the `NetworkPolicy`.
pub fn backend(server: &str) -> String {
    format!("{server}-backend")
}

/// The runner's `ServiceAccount`, Role and `RoleBinding`.
pub fn runner(server: &str) -> String {
    format!("{server}-runner")
}

/// The selector of everything that belongs to one part of a server.
pub fn selector(server: &str, part: &str) -> String {
    format!("{SERVER_LABEL}={server},{PART_LABEL}={part}")
}

/// Servers that would have a Service of one name with this one: the backend's of one is the proxy's of the other.
pub fn neighbours(server: &str) -> impl Iterator<Item = String> {
    let without = server.strip_suffix("-backend").filter(|name| !name.is_empty());
    std::iter::once(backend(server)).chain(without.map(str::to_owned))
}

/// The servers that a child of this name may belong to: all that a watch tells about a deleted object is its name.
pub fn servers_of(child: &str) -> impl Iterator<Item = &str> {
    let config = child.rsplit_once("-run-").map(|(server, _)| server);
    let suffixed = ["-backend", "-runner"].map(|suffix| child.strip_suffix(suffix));
    std::iter::once(child)
        .chain(suffixed.into_iter().flatten())
        .chain(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_child_leads_back_to_its_server() {
        let config = exuvia_rollout::FrozenConfig::new("a", "file", "text").name();
        for child in ["a".to_owned(), backend("a"), runner("a"), config] {
            assert!(servers_of(&child).any(|server| server == "a"), "{child}");
        }
    }
}
