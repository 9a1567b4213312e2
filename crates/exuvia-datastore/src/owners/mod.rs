//! Owners of moved objects, and objects owned by moved ones.
