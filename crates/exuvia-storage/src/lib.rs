//! Storage migration: rewrite every object, prove it, trim `storedVersions`, say what may be dropped.

pub mod protocol;
