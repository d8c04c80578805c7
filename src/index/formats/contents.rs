//! What a reader of a format returns.

use std::sync::Arc;

use super::dcp::SavedValues;
use crate::error::Result;
#[cfg(feature = "scan")]
use crate::index::model::{ChunkItem, Location};
use crate::index::model::{Index, Path};
use crate::index::pickled::Tree;
use crate::limits::Limits;
use crate::num::to_u64;

/// What one file contains.
#[derive(Debug)]
pub struct Contents {
    /// Its names, tensors and storages.
    pub index: Index,
    /// Its values that are not tensors.
    pub objects: Objects,
    /// Further checkpoints inside the file, whose names are final. The root of the object tree of one without a label is a dict.
    pub inner: Vec<Contents>,
}

/// What a checkpoint has beside its tensors; nothing in most formats.
#[derive(Debug, Default)]
pub struct Objects {
    /// The object tree of a pickle.
    pub tree: Option<Arc<Tree>>,
    /// Whether this is a TorchScript archive.
    pub is_torchscript: bool,
    /// The values of a distributed checkpoint that are not tensors.
    pub saved: Option<Arc<SavedValues>>,
    /// The name of this checkpoint in a file that holds several; see [`Contents::labelled`].
    pub label: Option<Arc<str>>,
}

impl From<Index> for Contents {
    fn from(index: Index) -> Contents {
        Contents { index, objects: Objects::default(), inner: Vec::new() }
    }
}

impl From<(Index, Arc<Tree>)> for Contents {
    fn from((index, tree): (Index, Arc<Tree>)) -> Contents {
        let objects = Objects { tree: Some(tree), ..Objects::default() };
        Contents { index, objects, inner: Vec::new() }
    }
}

impl Contents {
    /// These as those of a checkpoint inside a file, under a name of its own: all names and paths begin with it, and a tensor that is the
    /// root of its object tree has exactly that name. Fails over the limit `name_bytes_total`.
    pub(crate) fn labelled(mut self, label: &str, limits: &Limits) -> Result<Contents> {
        let places = self.index.opaque.iter_mut().flat_map(|class| &mut class.at);
        places.for_each(|at| *at = if at.is_empty() { label.to_owned() } else { format!("{label}.{at}") });
        let added = to_u64(self.index.entries.len()).saturating_mul(to_u64(label.len()));
        Limits::check("name_bytes_total", limits.name_bytes_total, added)?;
        for entry in &mut self.index.entries {
            let is_root = matches!(&entry.path, Path::Steps(steps) if steps.is_empty());
            entry.name =
                if is_root { Arc::from(label) } else { Arc::from(format!("{label}.{}", entry.name)) };
        }
        self.objects.label = Some(Arc::from(label));
        Ok(self)
    }

    /// The ranges that a distributed checkpoint stores its chunks and values in, each with its file; none for other formats.
    #[cfg(feature = "scan")]
    pub fn items(&self) -> impl Iterator<Item = ChunkItem<'_>> {
        let chunks = self.index.storages.iter().flat_map(|storage| match &storage.location {
            Location::Chunks(chunks) => Some(chunks.items()),
            _ => None,
        });
        let values = self
            .objects
            .saved
            .iter()
            .flat_map(|saved| saved.list().iter().filter_map(|value| saved.item(value)));
        chunks.flatten().chain(values)
    }
}
