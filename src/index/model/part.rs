//! A tensor that is a part of a larger one, as a process of a distributed program holds it: which box of the whole it is.
//!
//! The box follows from the placements as in `torch/distributed/tensor/_utils.py` (`compute_local_shape_and_global_offset`).

use std::fmt;

use crate::layout::Dims;

/// Which part of a larger tensor a tensor is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The shape of the whole tensor; `None` where only all parts together tell it.
    pub shape: Option<Dims>,
    /// The index in the whole tensor of the first element; `None` where the file does not say, and where the part is not a box.
    pub offsets: Option<Dims>,
    /// The device mesh and the placements of a DTensor.
    pub placement: Option<Placement>,
}

/// How a DTensor is distributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The size of each dimension of the device mesh.
    pub mesh: Dims,
    /// The coordinate in the mesh of the process that saved the file.
    pub coordinate: Dims,
    /// What is done along each dimension of the mesh.
    pub along: Box<[Along]>,
}

/// How a DTensor is distributed along one dimension of its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Every process has the same elements.
    Replicate,
    /// The dimension is cut as by `torch.chunk`.
    Shard(usize),
    /// The dimension is cut as by `torch.chunk`, after it was cut into some parts: `_StridedShard(dim, split_factor)`.
    StridedShard(usize, u64),
    /// Every process has terms of a sum or the like.
    Partial,
}

impl fmt::Display for Along {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Along::Replicate => f.write_str("Replicate()"),
            Along::Shard(dim) => write!(f, "Shard(dim={dim})"),
            Along::StridedShard(dim, factor) => write!(f, "_StridedShard(dim={dim}, split_factor={factor})"),
            Along::Partial => f.write_str("Partial()"),
        }
    }
}

/// One cut of a dimension: the number of chunks, and which of them it is.
type Cut = (u64, u64);

impl Placement {
    /// The first index and the size along each dimension of the box that this process has of a tensor of `shape`. `None` where that
    /// is not a box. `order` states for some dimensions of the tensor in which order the mesh's dimensions cut it.
    pub(crate) fn cut(&self, shape: &[u64], order: &[(usize, Dims)]) -> Option<(Dims, Dims)> {
        if self.along.contains(&Along::Partial) {
            return None;
        }
        let (mut offsets, mut sizes) = (Dims::new(), Dims::new());
        for (dim, &size) in shape.iter().enumerate() {
            let mesh_dims = match order.iter().find(|(ordered, _)| *ordered == dim) {
                Some((_, mesh_dims)) => mesh_dims.clone(),
                None => (0_u64..)
                    .zip(&self.along)
                    .filter(|(_, along)| along.cuts(dim))
                    .map(|(at, _)| at)
                    .collect(),
            };
            let (offset, size) = cut(size, self.cuts(dim, &mesh_dims)?)?;
            offsets.push(offset);
            sizes.push(size);
        }
        Some((offsets, sizes))
    }

    /// The cuts of one dimension of the tensor, the first one first. `None` where the dimension is cut into several runs.
    fn cuts(&self, dim: usize, mesh_dims: &[u64]) -> Option<Vec<Cut>> {
        let is_cut = |at: &u64| {
            usize::try_from(*at).ok().and_then(|at| self.along.get(at)).is_some_and(|along| along.cuts(dim))
        };
        let expected = self.along.iter().filter(|along| along.cuts(dim)).count();
        if mesh_dims.len() != expected || !mesh_dims.iter().all(is_cut) {
            return None;
        }
        let mut cuts = Vec::new();
        // FSDP over tensor parallelism cuts after all dimensions of the mesh to its right, and states their number of chunks.
        let mut chunks_right = 1_u64;
        for &at in mesh_dims.iter().rev() {
            let at = usize::try_from(at).ok()?;
            let (&count, &index) = (self.mesh.get(at)?, self.coordinate.get(at)?);
            match self.along.get(at)? {
                Along::StridedShard(_, factor) if *factor == chunks_right && *factor > 1 => {
                    cuts.push((count, index))
                }
                Along::Shard(_) | Along::StridedShard(_, 1) => cuts.insert(0, (count, index)),
                _ => return None,
            }
            chunks_right = chunks_right.checked_mul(count)?;
        }
        Some(cuts)
    }
}

impl Along {
    /// Whether it cuts this dimension of the tensor.
    fn cuts(self, dim: usize) -> bool {
        matches!(self, Along::Shard(own) | Along::StridedShard(own, _) if own == dim)
    }
}

/// The first index and the size of a chunk of a chunk and so on of a dimension. Chunks are as `torch.chunk` makes them; the last ones
/// may be empty.
fn cut(whole: u64, cuts: Vec<Cut>) -> Option<(u64, u64)> {
    let (mut offset, mut size) = (0_u64, whole);
    for (count, index) in cuts {
        if index >= count {
            return None;
        }
        let step = size.div_ceil(count);
        let start = step.checked_mul(index)?.min(size);
        let stop = start.checked_add(step)?.min(size);
        offset = offset.checked_add(start)?;
        size = stop.checked_sub(start)?;
    }
    Some((offset, size))
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn boxes(
        shape: &[u64],
        mesh: &[u64],
        along: &[Along],
        order: &[(usize, Dims)],
    ) -> Vec<Option<(Dims, Dims)>> {
        let count = mesh.iter().product();
        let coordinate = |mut rank: u64| -> Dims {
            let mut coordinate: Dims = mesh
                .iter()
                .rev()
                .map(|&size| {
                    let at = rank.checked_rem(size).unwrap_or(0);
                    rank = rank.checked_div(size).unwrap_or(0);
                    at
                })
                .collect();
            coordinate.reverse();
            coordinate
        };
        let placement =
            |rank| Placement { mesh: mesh.into(), coordinate: coordinate(rank), along: along.into() };
        (0..count).map(|rank| placement(rank).cut(shape, order)).collect()
    }

    fn rows(found: Vec<Option<(Dims, Dims)>>) -> Vec<(u64, u64)> {
        found.into_iter().flatten().map(|(offsets, sizes)| (offsets[0], sizes[0])).collect()
    }

    #[test]
    fn dimensions_are_cut_as_torch_cuts_them() {
        let uneven = rows(boxes(&[5, 3], &[4], &[Along::Shard(0)], &[]));
        assert_eq!(uneven, [(0, 2), (2, 2), (4, 1), (5, 0)]);
        let both = [Along::Shard(0), Along::Shard(0)];
        assert_eq!(rows(boxes(&[8], &[2, 2], &both, &[])), [(0, 2), (2, 2), (4, 2), (6, 2)]);
        assert_eq!(
            rows(boxes(&[8], &[2, 2], &both, &[(0, smallvec![1, 0])])),
            [(0, 2), (4, 2), (2, 2), (6, 2)]
        );
        let strided = [Along::StridedShard(0, 2), Along::Shard(0)];
        assert_eq!(rows(boxes(&[8], &[2, 2], &strided, &[])), [(0, 2), (4, 2), (2, 2), (6, 2)]);
        let columns = boxes(&[4, 6], &[2, 3], &[Along::Replicate, Along::Shard(1)], &[]);
        assert_eq!(columns[4], Some((smallvec![0, 2], smallvec![4, 2])));
    }

    #[test]
    fn what_is_no_box_has_no_place() {
        let strided = [Along::StridedShard(0, 4), Along::Shard(0)];
        assert_eq!(rows(boxes(&[8], &[2, 2], &strided, &[])), []);
        assert_eq!(rows(boxes(&[8], &[2], &[Along::Partial], &[])), []);
        // An order that leaves out a dimension of the mesh.
        let both = [Along::Shard(0), Along::Shard(0)];
        assert_eq!(rows(boxes(&[8], &[2, 2], &both, &[(0, smallvec![1])])), []);
        let outside =
            Placement { mesh: smallvec![2], coordinate: smallvec![2], along: [Along::Shard(0)].into() };
        assert_eq!(outside.cut(&[8], &[]), None);
    }
}
