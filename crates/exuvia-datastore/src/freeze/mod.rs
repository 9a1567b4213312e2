//! Keeps writers away from the source while it is copied, and proves that none is under way.
