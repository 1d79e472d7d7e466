//! Where model weights live: demands and budgets in, a placement out; pure, no I/O.
