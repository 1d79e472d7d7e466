//! Opening a checkpoint, whatever its form, and finding tensors in it.

use crate::{
    Metadata, View, WeightsError, gguf,
    json::Text,
    layout,
    map::{Advice, MappedFile, read_small},
    safetensors,
};
use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The most that a `config.json` may take.
pub const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// The most that [`Checkpoint::sidecar`] reads.
pub const MAX_SIDECAR_BYTES: u64 = 256 << 20;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// The form that a checkpoint has on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One GGUF file, or the parts of a split one.
    Gguf,
    /// One safetensors file, or the shards that an index names.
    Safetensors,
    /// A `config.json` alone: shapes, no tensors.
    ConfigOnly,
}

/// An open checkpoint: mapped files, what they declare, and the configuration beside them.
pub struct Checkpoint {
    path: PathBuf,
    /// Where files beside the model are looked up.
    folder: PathBuf,
    format: Format,
    files: Vec<Arc<MappedFile>>,
    metadata: Metadata,
    /// In file order.
    views: Vec<View>,
    /// Positions in `views`, in the byte order of the names.
    order: Vec<usize>,
    config: Option<(PathBuf, serde_json::Value)>,
}

impl Checkpoint {
    /// Opens a `.gguf` file (any part of a split one opens all), a `.safetensors` file, an index of shards, a bare
    /// `config.json`, or a folder of safetensors or with only a `config.json`.
    ///
    /// Reads and checks headers only; no tensor is touched.
    ///
    /// # Errors
    /// Whatever is wrong first, with its place.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        let is_folder = match fs::metadata(path) {
            Ok(m) => m.is_dir(),
            Err(source) => return Err(WeightsError::Io { file: path.to_owned(), source }),
        };
        if is_folder {
            return Checkpoint::open_folder(path);
        }
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.ends_with(".gguf") || (!is_known(name) && has_gguf_magic(path)?) {
            let gguf::Gguf { files, metadata, views } = gguf::open(path)?;
            Checkpoint::new(path, folder, Format::Gguf, files, metadata, views, None)
        } else if name.ends_with(".safetensors") {
            Checkpoint::from_safetensors(path, folder, safetensors::open(path)?)
        } else if name.ends_with(".index.json") {
            Checkpoint::from_safetensors(path, folder, safetensors::open_sharded(path)?)
        } else if name.ends_with(".json") {
            Checkpoint::config_only(path, path.to_owned(), folder)
        } else {
            Err(WeightsError::UnknownFormat { file: path.to_owned() })
        }
    }

    fn open_folder(folder: &Path) -> Result<Checkpoint, WeightsError> {
        let has = |name: &str| folder.join(name).is_file();
        if has(INDEX) {
            let found = safetensors::open_sharded(&folder.join(INDEX))?;
            return Checkpoint::from_safetensors(folder, folder.to_owned(), found);
        }
        let mut single = folder.join(SINGLE);
        if !has(SINGLE) {
            let reason =
                |reason: &str| WeightsError::NoModel { folder: folder.to_owned(), reason: reason.to_owned() };
            let mut found = safetensors_in(folder)?;
            match (found.pop(), found.is_empty()) {
                (Some(only), true) => single = only,
                (Some(_), false) => {
                    return Err(reason(
                        "several .safetensors files, but no model.safetensors.index.json to say how they belong",
                    ));
                }
                (None, _) if has(CONFIG) => {
                    return Checkpoint::config_only(folder, folder.join(CONFIG), folder.to_owned());
                }
                (None, _) => return Err(reason("no .safetensors file and no config.json in this folder")),
            }
        }
        Checkpoint::from_safetensors(folder, folder.to_owned(), safetensors::open(&single)?)
    }

    fn from_safetensors(
        path: &Path,
        folder: PathBuf,
        found: safetensors::Safetensors,
    ) -> Result<Checkpoint, WeightsError> {
        let config = read_config(&folder.join(CONFIG))?;
        let safetensors::Safetensors { files, metadata, views } = found;
        Checkpoint::new(path, folder, Format::Safetensors, files, metadata, views, config)
    }

    fn config_only(path: &Path, config: PathBuf, folder: PathBuf) -> Result<Checkpoint, WeightsError> {
        let metadata = Metadata::new(&config, Vec::new())?;
        let config = read_config(&config)?;
        Checkpoint::new(path, folder, Format::ConfigOnly, Vec::new(), metadata, Vec::new(), config)
    }

    fn new(
        path: &Path,
        folder: PathBuf,
        format: Format,
        files: Vec<Arc<MappedFile>>,
        metadata: Metadata,
        views: Vec<View>,
        config: Option<(PathBuf, serde_json::Value)>,
    ) -> Result<Checkpoint, WeightsError> {
        let order = layout::by_name(&views)?;
        Ok(Checkpoint { path: path.to_owned(), folder, format, files, metadata, views, order, config })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its form on disk.
    pub fn format(&self) -> Format {
        self.format
    }

    /// All tensors, in file order: as GGUF lists them, by offset in safetensors, part after part.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = View> {
        self.views.iter().cloned()
    }

    /// All tensors in the byte order of their names, whatever the file order: two files with the same weights give
    /// the same sequence of (name, type, shape, bytes), which is what a digest of the weights is taken over.
    pub fn tensors_by_name(&self) -> impl ExactSizeIterator<Item = View> {
        self.order.iter().map(|&i| self.views[i].clone())
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<View> {
        let found = self.order.binary_search_by(|&i| self.views[i].name().cmp(name)).ok()?;
        Some(self.views[self.order[found]].clone())
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`].
    pub fn require(&self, name: &str) -> Result<View, WeightsError> {
        let missing = || WeightsError::MissingTensor { file: self.path.clone(), tensor: name.to_owned() };
        self.get(name).ok_or_else(missing)
    }

    /// The key/value metadata: that of a GGUF file, or the `__metadata__` strings of a safetensors file (of the
    /// first shard). Empty where there is none.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The Hugging Face `config.json` that lies beside safetensors, or is all there is. `None` for GGUF.
    pub fn config(&self) -> Option<&serde_json::Value> {
        self.config.as_ref().map(|(_, config)| config)
    }

    /// Where [`Checkpoint::config`] was read from.
    pub fn config_path(&self) -> Option<&Path> {
        self.config.as_ref().map(|(path, _)| path.as_path())
    }

    /// The content of a file beside the model, such as `tokenizer.json`, `tokenizer_config.json`,
    /// `generation_config.json` or `chat_template.jinja`; `None` where there is no such file.
    ///
    /// # Errors
    /// [`WeightsError::FileName`] unless `name` is a plain file name, [`WeightsError::TooLarge`] past
    /// [`MAX_SIDECAR_BYTES`], [`WeightsError::NotAFile`] or [`WeightsError::Io`].
    pub fn sidecar(&self, name: &str) -> Result<Option<Vec<u8>>, WeightsError> {
        if !safetensors::is_plain(name) {
            return Err(WeightsError::FileName { file: self.folder.clone(), name: name.to_owned() });
        }
        read_small(&self.folder.join(name), MAX_SIDECAR_BYTES)
    }

    /// The mapped files, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|f| f.path())
    }

    /// The size of all mapped files together, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes().len() as u64).sum()
    }

    /// The size of all tensors together, in bytes.
    pub fn tensor_bytes(&self) -> u64 {
        self.views.iter().map(|v| v.source().bytes).sum()
    }

    /// Tells the operating system how the files will be read; best effort, and never an error.
    pub fn advise(&self, advice: Advice) {
        for file in &self.files {
            file.advise(advice, 0, file.bytes().len());
        }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("format", &self.format)
            .field("tensors", &self.views.len())
            .field("keys", &self.metadata.len())
            .field("file_bytes", &self.file_bytes())
            .finish_non_exhaustive()
    }
}

/// Whether the ending of a file's name says what it is.
fn is_known(name: &str) -> bool {
    [".gguf", ".safetensors", ".json"].iter().any(|end| name.ends_with(end))
}

fn has_gguf_magic(path: &Path) -> Result<bool, WeightsError> {
    let io = |source| WeightsError::Io { file: path.to_owned(), source };
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(WeightsError::NotAFile { file: path.to_owned() });
    }
    let mut magic = Vec::new();
    fs::File::open(path).map_err(io)?.take(4).read_to_end(&mut magic).map_err(io)?;
    Ok(magic == b"GGUF")
}

/// The `.safetensors` files of a folder; two are enough to know that there is not one.
fn safetensors_in(folder: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let io = |source| WeightsError::Io { file: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == "safetensors") && path.is_file() && found.len() < 2 {
            found.push(path);
        }
    }
    Ok(found)
}

fn read_config(path: &Path) -> Result<Option<(PathBuf, serde_json::Value)>, WeightsError> {
    let Some(bytes) = read_small(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    let text = Text::new(path, &bytes, 0)?;
    let object = text.read_with_infinities()?;
    Ok(Some((path.to_owned(), serde_json::Value::Object(object))))
}
