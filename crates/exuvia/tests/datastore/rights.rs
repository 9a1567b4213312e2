//! A migration needs rights of its own: it waits for them, names them, and `exuvia rbac -f` prints them.
