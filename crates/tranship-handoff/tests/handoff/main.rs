//! Contracts and hand-offs: what is derived, what is written and read, and everything that is refused.

mod contracts;
mod draft;
mod extents;
mod families;
mod files;
mod hostile;
mod refusals;
mod shares;
mod streams;
