//! Nothing but the model check in `tests/model`: the protocol of datastore migration, over small worlds.
