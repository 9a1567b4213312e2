//! Turns one object of the source into objects of the target: a raw copy, of which only what is declared is converted.
