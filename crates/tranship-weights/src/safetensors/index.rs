//! Sharded safetensors: `model.safetensors.index.json` places each tensor in one of several files.

use super::{Safetensors, parse};
use crate::{
    Place, WeightsError,
    json::{Name, Pairs, Text},
    map::{MappedFile, read_small},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, path::Path};

/// The most that an index may take; those of the largest models are a few megabytes.
const MAX_INDEX_BYTES: u64 = 64 << 20;

#[derive(Deserialize)]
struct Index<'a> {
    #[serde(borrow)]
    weight_map: &'a RawValue,
}

/// A tensor's place, as the index has it.
struct Placed<'a> {
    shard: Cow<'a, str>,
    byte: u64,
}

/// Opens the index at `path` and every shard that it names.
pub(crate) fn open_sharded(path: &Path) -> Result<Safetensors, WeightsError> {
    let Some(bytes) = read_small(path, MAX_INDEX_BYTES)? else {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(WeightsError::Io { file: path.to_owned(), source });
    };
    let placed = read(path, &bytes)?;
    let mut shards: BTreeMap<&str, (&str, u64)> = BTreeMap::new();
    for (tensor, p) in &placed {
        shards.entry(&p.shard).or_insert((tensor, p.byte));
    }
    let mut all: Option<Safetensors> = None;
    for (&shard, &(tensor, byte)) in &shards {
        let file = match MappedFile::open(&path.with_file_name(shard)) {
            Err(WeightsError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                let at = Place::tensor(path, tensor, byte);
                return Err(WeightsError::MissingShard { at, shard: shard.to_owned() });
            }
            other => other?,
        };
        let (metadata, views) = parse(&file)?;
        match &mut all {
            None => all = Some(Safetensors { files: vec![file], metadata, views }),
            Some(all) => {
                all.files.push(file);
                all.views.extend(views);
            }
        }
    }
    let Some(all) = all else {
        let at = Place::header(path, 0);
        return Err(WeightsError::Json { at, reason: "`weight_map` places no tensor".to_owned() });
    };
    agree(path, &placed, &all)?;
    Ok(all)
}

/// The places of all tensors, by name.
fn read<'a>(path: &'a Path, bytes: &'a [u8]) -> Result<BTreeMap<Cow<'a, str>, Placed<'a>>, WeightsError> {
    let text = Text::new(path, bytes, 0)?;
    let index: Index<'_> = text.read()?;
    let map = text.member(index.weight_map);
    let Pairs(members) = map.read::<Pairs<'_, &RawValue>>()?;
    let mut placed: BTreeMap<Cow<'_, str>, Placed<'_>> = BTreeMap::new();
    for (tensor, raw) in members {
        let member = map.member(raw);
        let Name(shard) = member.read_of(&tensor)?;
        if !is_plain(&shard) {
            return Err(WeightsError::FileName { file: path.to_owned(), name: shard.into_owned() });
        }
        let byte = member.base;
        if let Some(first) = placed.get(&tensor) {
            let at = Place::tensor(path, &tensor, byte);
            return Err(WeightsError::DuplicateTensor { at, first: path.to_owned(), byte: first.byte });
        }
        placed.insert(tensor, Placed { shard, byte });
    }
    Ok(placed)
}

/// Checks that index and shards place the same tensors in the same files.
fn agree(
    path: &Path,
    placed: &BTreeMap<Cow<'_, str>, Placed<'_>>,
    all: &Safetensors,
) -> Result<(), WeightsError> {
    crate::layout::by_name(&all.views)?;
    let mut there = std::collections::HashSet::new();
    for view in &all.views {
        let file = view.source().file;
        let here = placed.get(view.name()).is_some_and(|p| path.with_file_name(&*p.shard) == file);
        if !here {
            let at = Place::tensor(file, view.name(), view.declared_at());
            return Err(WeightsError::ShardExtra { at, index: path.to_owned() });
        }
        there.insert(view.name());
    }
    match placed.iter().find(|(tensor, _)| !there.contains(&***tensor)) {
        None => Ok(()),
        Some((tensor, p)) => Err(WeightsError::ShardLacks {
            at: Place::tensor(path, tensor, p.byte),
            shard: path.with_file_name(&*p.shard),
        }),
    }
}

/// Whether `name` is a file name and nothing more: it cannot leave the folder it is looked up in.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(only)), None) if only == name)
        && !name.contains(['\\', '\0'])
}
