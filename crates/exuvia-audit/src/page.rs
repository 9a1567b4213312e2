//! How many objects to ask for at a time, so that a page has a few megabytes whatever the size of the objects.

/// What the first page of a resource asks for: even at 1.5 MiB each, the most that etcd takes, they are 32 MiB as base64.
const FIRST: u32 = 16;
/// What an answer should come to, in bytes on the wire.
const WANTED: u64 = 4 << 20;

/// The number of objects to ask for next.
#[derive(Clone, Debug)]
pub(super) struct PageSize {
    next: u32,
    most: u32,
}

impl PageSize {
    /// At the start of a resource: the objects of another say nothing about the size of this one's.
    pub(super) fn new(most: u32) -> Self {
        let most = most.max(1);
        Self {
            next: FIRST.min(most),
            most,
        }
    }

    pub(super) fn get(&self) -> u32 {
        self.next
    }

    /// Learns from an answer: shrinks at once, grows twofold at most.
    pub(super) fn learn(&mut self, objects: usize, bytes: usize) {
        let mean = (bytes as u64 / objects.max(1) as u64).max(1);
        let fitting = u32::try_from(WANTED / mean).unwrap_or(u32::MAX);
        self.next = fitting.min(self.next.saturating_mul(2)).clamp(1, self.most);
    }

    /// After an answer that was too large to take; `false` if it cannot be made smaller.
    pub(super) fn shrink(&mut self) -> bool {
        let shrunk = self.next > 1;
        self.next = (self.next / 4).max(1);
        shrunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_get_the_largest_page_soon() {
        let mut size = PageSize::new(500);
        let mut pages = Vec::new();
        for _ in 0..7 {
            pages.push(size.get());
            size.learn(size.get() as usize, size.get() as usize * 1_000);
        }
        assert_eq!(pages, [16, 32, 64, 128, 256, 500, 500]);
    }

    #[test]
    fn large_objects_get_a_small_page_at_once() {
        let mut size = PageSize::new(500);
        size.learn(16, 16 << 20);
        assert_eq!(size.get(), 4);
        size.learn(4, 40 << 20);
        assert_eq!(size.get(), 1, "never none");
        size.learn(0, 100);
        assert_eq!(size.get(), 2);
    }

    #[test]
    fn the_callers_limit_holds() {
        assert_eq!(PageSize::new(3).get(), 3);
        assert_eq!(PageSize::new(0).get(), 1);
        let mut size = PageSize::new(3);
        size.learn(3, 30);
        assert_eq!(size.get(), 3);
    }

    #[test]
    fn a_page_that_was_too_large_is_asked_for_in_parts() {
        let mut size = PageSize::new(16);
        assert!(size.shrink());
        assert_eq!(size.get(), 4);
        assert!(size.shrink());
        assert!(!size.shrink(), "one object is the least");
        assert_eq!(size.get(), 1);
    }
}
