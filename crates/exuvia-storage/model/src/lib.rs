//! Nothing but the model check in `tests/model`: the protocol of storage migration, over small worlds.
