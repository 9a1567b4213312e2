//! Walks every object of a resource in bounded memory.
