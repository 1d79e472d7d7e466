//! What a tokenizer is made from: plain data that someone else read from a file.

/// Where a tokenizer comes from. Nothing here opens a file.
#[derive(Debug, Clone)]
pub enum TokenizerSource<'a> {
    /// The files of a Hugging Face folder, as bytes.
    HfJson {
        /// `tokenizer.json`.
        tokenizer_json: &'a [u8],
        /// `tokenizer_config.json`: the names of the special tokens, perhaps the chat template.
        tokenizer_config: Option<&'a [u8]>,
        /// `generation_config.json`: end tokens, one or a list.
        generation_config: Option<&'a [u8]>,
        /// `chat_template.jinja`; wins over the template in `tokenizer_config.json`.
        chat_template: Option<&'a str>,
    },
    /// The `tokenizer.*` metadata of a GGUF file.
    Gguf(GgufVocab),
}

/// The `tokenizer.*` metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before merging; needed by `gpt2`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of each id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.merges`: `left right`, best first; used by `gpt2`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`: one for each id; used by `llama`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: the end of a turn, where it is not `eos`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; absent: yes for `llama` and for the Llama 3 pre-tokenizers, else no.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; absent: no.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; absent: yes for `llama`. `gpt2` has none.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}
