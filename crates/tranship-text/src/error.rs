//! Everything that can go wrong between text and token ids, each with the thing's name, what was wanted and what was found.

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A JSON file of the tokenizer does not parse.
    #[error("{file}: not valid JSON: {source}")]
    Json {
        /// Which file: `tokenizer_config.json` or `generation_config.json`.
        file: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// `tokenizer.json` does not describe a tokenizer.
    #[error("tokenizer.json: {message}")]
    TokenizerJson {
        /// What the reader said.
        message: String,
    },
    /// The GGUF vocabulary is of a kind this crate does not have.
    #[error("tokenizer.ggml.model: wanted `gpt2` or `llama`, found `{found}`")]
    UnknownModel {
        /// The kind in the file.
        found: String,
    },
    /// The GGUF vocabulary names a way of splitting text that this crate does not have.
    #[error("tokenizer.ggml.pre: unknown pre-tokenizer `{found}`; known: {known}")]
    UnknownPre {
        /// The name in the file.
        found: String,
        /// The names this crate knows, comma-separated.
        known: String,
    },
    /// A byte-level GGUF vocabulary that does not say how its text is split.
    #[error("tokenizer.ggml.pre is missing: a `gpt2` vocabulary needs one of {known}")]
    MissingPre {
        /// The names this crate knows, comma-separated.
        known: String,
    },
    /// A list of the vocabulary has the wrong number of entries.
    #[error("tokenizer.ggml.{list}: wanted {wanted} entries, one for each token, found {found}")]
    ListLength {
        /// The list: `scores` or `token_type`.
        list: &'static str,
        /// The number of tokens.
        wanted: usize,
        /// The number of entries.
        found: usize,
    },
    /// Two ids of the vocabulary have the same text.
    #[error("token {token:?}: wanted one id, found {first} and {second}")]
    DuplicateToken {
        /// The text.
        token: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// An entry of the merge list is not two tokens whose concatenation is a token.
    #[error("merge {index} {merge:?}: wanted two tokens and a space between them: {message}")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// Its text.
        merge: String,
        /// What is wrong with it.
        message: String,
    },
    /// A vocabulary scored like SentencePiece lacks a byte token.
    #[error("byte token {wanted:?} is missing: a `llama` vocabulary needs all 256")]
    MissingByte {
        /// The token's text.
        wanted: String,
    },
    /// An id that the file gives for a special token is not in the vocabulary.
    #[error("{role} token: wanted an id below {vocab_size}, found {id}")]
    SpecialId {
        /// `bos`, `eos`, `eot`, `unk` or `pad`.
        role: &'static str,
        /// The id.
        id: u32,
        /// Number of ids.
        vocab_size: usize,
    },
    /// The tokenizer turns tokens into text in a way this crate does not have.
    #[error(
        "tokenizer.json decoder: wanted ByteLevel, Metaspace or a Sequence of Replace, ByteFallback, Fuse and Strip, found {found}"
    )]
    UnknownDecoder {
        /// The decoder, or the part of it, as JSON.
        found: String,
    },
    /// The tokenizer library refused a text.
    #[error("text of {bytes} bytes: {message}")]
    Encode {
        /// The text's length.
        bytes: usize,
        /// What the library said.
        message: String,
    },
    /// Text that was to be encoded without control tokens came out with one.
    #[error("text encodes to the control token {token:?} (id {id}), which plain text may not hold")]
    ControlInText {
        /// The token's text.
        token: String,
        /// Its id.
        id: u32,
    },
    /// An id that is not in the vocabulary.
    #[error("token id {id}: wanted an id of the vocabulary (size {vocab_size})")]
    UnknownToken {
        /// The id.
        id: u32,
        /// The number of ids.
        vocab_size: usize,
    },
    /// The chat template does not parse.
    #[error("chat template, line {line}: {source}")]
    TemplateSyntax {
        /// Line, from 1; 0 where unknown.
        line: usize,
        /// What the template engine said.
        source: minijinja::Error,
    },
    /// The chat template failed while rendering.
    #[error("chat template, line {line}: {source}")]
    TemplateRender {
        /// Line, from 1; 0 where unknown.
        line: usize,
        /// What the template engine said.
        source: minijinja::Error,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("chat template refuses the conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The chat template ran past its bound of work.
    #[error("chat template: stopped after {budget} units of work")]
    TemplateBudget {
        /// The bound: about one unit an instruction or 64 bytes.
        budget: u64,
    },
    /// A date that the calendar does not have.
    #[error("date: wanted a day of the calendar, found {found}")]
    Date {
        /// The date as given.
        found: String,
    },
    /// A logit that no distribution can hold.
    #[error("logit of token {token}: wanted a finite value or -inf, found {value}")]
    Logit {
        /// The first such token.
        token: u32,
        /// NaN or +inf.
        value: f32,
    },
    /// There is no token to choose.
    #[error("logits: wanted at least one above -inf, found none among {count}")]
    NoCandidate {
        /// The number of logits.
        count: usize,
    },
    /// A sampler option out of its range.
    #[error("sampler option {name}: wanted {wanted}, found {found}")]
    SamplerOption {
        /// The option.
        name: &'static str,
        /// Its range.
        wanted: &'static str,
        /// Its value.
        found: f32,
    },
}
