//! What the control plane of the tests really does, on one shared control plane where that will do.

mod processes;
mod stored_bytes;
