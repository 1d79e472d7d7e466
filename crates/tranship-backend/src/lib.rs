//! The seam between typed programs and the chips that run them, and the plain reference interpreter.
