//! The derived contract of a decode step, and hand-off files that are checked and sealed.
