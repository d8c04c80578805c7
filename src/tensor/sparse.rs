//! Validates the indices of a sparse tensor, as torch's `check_invariants` does: indices lie inside the shape, those of a row or
//! column ascend, and the shapes of the parts agree. Indices are read a block at a time.

use super::Tensor;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Result, bail, error};
use crate::index::SparseLayout;
use crate::layout::{Dims, TensorIndex};
use crate::parallel::Cancel;

/// Indices that are read at once.
const BLOCK_INDICES: u64 = 1 << 16;

impl Tensor {
    /// Bytes of the indices among the parts of a sparse tensor, as 64-bit integers, where elements repeat: a file can claim any
    /// number of indices by a stride of 0. Fails over the limit `materialize_bytes`.
    pub(crate) fn expanded_index_bytes(parts: &[Tensor]) -> Result<u64> {
        let indices = parts.split_last().map_or(parts, |(_values, indices)| indices);
        indices.iter().try_fold(0_u64, |sum, part| Ok(sum.saturating_add(part.repeated_bytes(DType::I64)?)))
    }

    /// Validates the parts of a sparse tensor, given in the order of the layout (torch's `indices, values` or
    /// `compressed_indices, plain_indices, values`). Fails with [`Code::SparseInvariant`] where an invariant does not hold.
    pub(crate) fn check_sparse(
        layout: SparseLayout,
        shape: &[u64],
        is_coalesced: Option<bool>,
        parts: &[Tensor],
        cancel: &Cancel,
    ) -> Result<()> {
        Tensor::expanded_index_bytes(parts)?;
        match (layout, parts) {
            (SparseLayout::Coo, [indices, values]) => {
                check_coo(shape, is_coalesced == Some(true), indices, values, cancel)
            }
            (_, [compressed, plain, values]) if layout != SparseLayout::Coo => {
                Compressed::new(layout, shape, compressed, plain, values)?.check(cancel)
            }
            _ => bail!(Code::SparseInvariant, "{} does not have {} parts", layout.name(), parts.len()),
        }
    }
}

fn check_coo(
    shape: &[u64],
    is_coalesced: bool,
    indices: &Tensor,
    values: &Tensor,
    cancel: &Cancel,
) -> Result<()> {
    check_ints(indices)?;
    let (&[sparse_dims, count], Some((&values_count, dense_shape))) =
        (&indices.layout.shape[..], values.layout.shape.split_first())
    else {
        bail!(Code::SparseInvariant, "the indices are not a matrix, or the values have no dimension");
    };
    let split = usize::try_from(sparse_dims).ok().filter(|&dims| dims <= shape.len());
    if split.is_none_or(|split| shape[split..] != *dense_shape) || values_count != count {
        let (indices, values) = (&indices.layout.shape[..], &values.layout.shape[..]);
        bail!(
            Code::SparseInvariant,
            "indices of {indices:?} and values of {values:?} do not make up {shape:?}"
        );
    }
    if sparse_dims == 0 {
        // All values have the same, empty coordinates.
        if is_coalesced && count > 1 {
            bail!(
                Code::SparseInvariant,
                "coordinates [] are repeated, but the file says that the tensor is coalesced"
            );
        }
        return Ok(());
    }
    let mut previous: Option<Vec<i64>> = None;
    let step = (BLOCK_INDICES / sparse_dims).max(1);
    for start in (0..count).step_by(step as usize) {
        let stop = count.min(start + step);
        let block = read(&indices.index(&[TensorIndex::Ellipsis, range(start, stop)])?, cancel)?;
        let width = (stop - start) as usize;
        for (row, &size) in block.chunks_exact(width).zip(shape) {
            if let Some(&bad) = row.iter().find(|&&index| !is_below(index, size)) {
                bail!(Code::SparseInvariant, "index {bad} lies outside a dimension of size {size}");
            }
        }
        if is_coalesced {
            for column in 0..width {
                let coordinates: Vec<i64> = block.iter().skip(column).step_by(width).copied().collect();
                if previous.as_ref().is_some_and(|previous| *previous >= coordinates) {
                    bail!(
                        Code::SparseInvariant,
                        "coordinates {coordinates:?} are repeated or out of order, but the file says that the tensor is coalesced"
                    );
                }
                previous = Some(coordinates);
            }
        }
    }
    Ok(())
}

/// A sparse compressed tensor (CSR, CSC, BSR, BSC) whose parts have shapes that agree. Rows are those of the compressed
/// dimension, which are columns in CSC and BSC.
struct Compressed<'a> {
    /// torch's `compressed_indices`: where each row starts among the plain indices.
    compressed: &'a Tensor,
    /// torch's `plain_indices`: the positions of the elements within their rows.
    plain: &'a Tensor,
    /// The number of batch dimensions.
    batch_dims: usize,
    /// Length of a row, in elements or blocks.
    width: u64,
    /// Specified elements or blocks in each matrix.
    count: u64,
}

impl<'a> Compressed<'a> {
    fn new(
        layout: SparseLayout,
        shape: &[u64],
        compressed: &'a Tensor,
        plain: &'a Tensor,
        values: &Tensor,
    ) -> Result<Compressed<'a>> {
        check_compressed_ints(compressed)?;
        check_compressed_ints(plain)?;
        if compressed.dtype != plain.dtype {
            bail!(
                Code::SparseInvariant,
                "indices of {} and of {} do not make up a tensor",
                compressed.dtype,
                plain.dtype
            );
        }
        let mismatch = || {
            let [one, two, three] = [compressed, plain, values].map(|part| part.layout.shape.clone());
            let name = layout.name();
            error!(
                Code::SparseInvariant,
                "the parts of {name}, {one:?}, {two:?} and {three:?}, do not make up {shape:?}"
            )
        };
        let batch_dims = compressed.layout.ndim().checked_sub(1).ok_or_else(mismatch)?;
        let [compressed_shape, plain_shape, values_shape] =
            [compressed, plain, values].map(|part| &part.layout.shape[..]);
        if plain_shape.len() != batch_dims + 1
            || values_shape.len() < batch_dims + 1
            || shape.len() < batch_dims + 2
        {
            return Err(mismatch());
        }
        let blocked = matches!(layout, SparseLayout::Bsr | SparseLayout::Bsc);
        // The first dense dimension of the values.
        let dense_dim = batch_dims + if blocked { 3 } else { 1 };
        let block = if blocked { values_shape.get(batch_dims + 1..dense_dim) } else { Some(&[1, 1][..]) };
        let Some(&[rows, columns]) = block else { return Err(mismatch()) };
        if rows == 0
            || columns == 0
            || !shape[batch_dims].is_multiple_of(rows)
            || !shape[batch_dims + 1].is_multiple_of(columns)
        {
            return Err(mismatch());
        }
        let (rows, columns) = (shape[batch_dims] / rows, shape[batch_dims + 1] / columns);
        let by_rows = matches!(layout, SparseLayout::Csr | SparseLayout::Bsr);
        let (rows, width) = if by_rows { (rows, columns) } else { (columns, rows) };
        let batch = &shape[..batch_dims];
        let agrees = compressed_shape[..batch_dims] == *batch
            && plain_shape[..batch_dims] == *batch
            && values_shape[..batch_dims] == *batch
            && Some(compressed_shape[batch_dims]) == rows.checked_add(1)
            && plain_shape[batch_dims] == values_shape[batch_dims]
            && values_shape[dense_dim..] == shape[batch_dims + 2..];
        if !agrees {
            return Err(mismatch());
        }
        Ok(Compressed { compressed, plain, batch_dims, width, count: plain_shape[batch_dims] })
    }

    /// Validates the indices of every matrix of the batch; of equal ones along an expanded dimension, the first.
    fn check(&self, cancel: &Cancel) -> Result<()> {
        let (compressed, plain) = (&self.compressed.layout, &self.plain.layout);
        let is_expanded =
            |dim: usize| compressed.strides[dim] == 0 && (plain.strides[dim] == 0 || self.count == 0);
        let size = |dim: usize| compressed.shape[dim].min(if is_expanded(dim) { 1 } else { u64::MAX });
        let sizes: Dims = (0..self.batch_dims).map(size).collect();
        let matrices = crate::layout::numel(&sizes).unwrap_or(u64::MAX);
        for number in 0..matrices {
            cancel.check()?;
            let mut rest = number;
            let mut items: Vec<TensorIndex> = Vec::with_capacity(self.batch_dims);
            for &size in sizes.iter().rev() {
                items.push(TensorIndex::At((rest % size) as i64));
                rest /= size;
            }
            items.reverse();
            self.check_matrix(&self.compressed.index(&items)?, &self.plain.index(&items)?, cancel)?;
        }
        Ok(())
    }

    fn check_matrix(&self, compressed: &Tensor, plain: &Tensor, cancel: &Cancel) -> Result<()> {
        let len = compressed.layout.shape[0];
        let mut end = None;
        for start in (0..len).step_by(BLOCK_INDICES as usize) {
            // Blocks overlap by one index, so that every row has its start and its end in one of them.
            let stop = len.min(start + BLOCK_INDICES + 1);
            let bounds = read(&compressed.index(&[range(start, stop)])?, cancel)?;
            if start == 0 && bounds.first() != Some(&0) {
                bail!(Code::SparseInvariant, "the compressed indices do not begin at 0");
            }
            for pair in bounds.windows(2) {
                let fits = is_below(pair[1], self.count.saturating_add(1))
                    && pair[0] <= pair[1]
                    && (pair[1] - pair[0]) as u64 <= self.width;
                if !fits {
                    bail!(
                        Code::SparseInvariant,
                        "compressed indices {} and {} do not fit a width of {} and {} element(s)",
                        pair[0],
                        pair[1],
                        self.width,
                        self.count
                    );
                }
            }
            self.check_rows(&bounds, plain, cancel)?;
            end = bounds.last().copied();
        }
        if end.and_then(|end| u64::try_from(end).ok()) != Some(self.count) {
            bail!(
                Code::SparseInvariant,
                "the compressed indices end at {end:?}, there are {} element(s)",
                self.count
            );
        }
        Ok(())
    }

    /// Fails unless the plain indices of some rows lie inside the width and ascend in each row. `bounds` are the rows' starts and
    /// ends, ascending and in range.
    fn check_rows(&self, bounds: &[i64], plain: &Tensor, cancel: &Cancel) -> Result<()> {
        let (Some(&first), Some(&last)) = (bounds.first(), bounds.last()) else { return Ok(()) };
        let (mut ends, mut end) = (bounds[1..].iter(), first);
        let mut previous = -1;
        for start in (first..last).step_by(BLOCK_INDICES as usize) {
            let stop = last.min(start + BLOCK_INDICES as i64);
            let block = read(&plain.index(&[range(start as u64, stop as u64)])?, cancel)?;
            for (position, &index) in (start..).zip(&block) {
                while position >= end {
                    previous = -1;
                    end = ends.next().copied().unwrap_or(i64::MAX);
                }
                if !is_below(index, self.width) || index <= previous {
                    bail!(
                        Code::SparseInvariant,
                        "plain index {index} follows {previous} where the width is {}",
                        self.width
                    );
                }
                previous = index;
            }
        }
        Ok(())
    }
}

fn range(start: u64, stop: u64) -> TensorIndex {
    let bound = |at| i64::try_from(at).ok();
    TensorIndex::Range { start: bound(start), stop: bound(stop), step: None }
}

fn is_below(index: i64, size: u64) -> bool {
    u64::try_from(index).is_ok_and(|index| index < size)
}

/// Fails unless indices are integers and present in the file.
fn check_ints(part: &Tensor) -> Result<()> {
    if part.dtype.kind() != Kind::Int {
        bail!(Code::SparseInvariant, "indices of {} are not integers", part.dtype);
    }
    part.check_not_meta()
}

/// As [`check_ints`], for the indices of a compressed layout: torch's kernels take them for 32- or 64-bit integers that lie one
/// after another in each matrix.
fn check_compressed_ints(part: &Tensor) -> Result<()> {
    check_ints(part)?;
    if !matches!(part.dtype, DType::I32 | DType::I64) {
        bail!(Code::SparseInvariant, "compressed indices of {} are not int32 or int64", part.dtype);
    }
    let is_contiguous = match (part.layout.shape.last(), part.layout.strides.last()) {
        (Some(&size), Some(&stride)) => size <= 1 || stride == 1,
        _ => true,
    };
    if !is_contiguous {
        bail!(Code::SparseInvariant, "compressed indices are not contiguous");
    }
    Ok(())
}

/// Reads a part as 64-bit integers.
fn read(part: &Tensor, cancel: &Cancel) -> Result<Vec<i64>> {
    let bytes = part.numbers(DType::I64, Some(1), cancel)?;
    Ok(bytes.as_chunks().0.iter().map(|&index| i64::from_le_bytes(index)).collect())
}
