//! Model specifications from config.json or GGUF metadata, and the author of their programs.
