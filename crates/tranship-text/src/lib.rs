//! Tokenizer, chat template and sampler around a language model.
