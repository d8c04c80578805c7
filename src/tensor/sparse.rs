//! What a sparse tensor's indices must fulfil before anybody relies on them, as torch's `check_invariants` has it: they lie
//! inside the shape, rows and columns grow, and the parts fit one another. Indices are read a block at a time.

use super::{Request, Tensor};
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::index::SparseLayout;
use crate::layout::TensorIndex;
use crate::parallel::Cancel;

/// Indices that are read at once.
const BLOCK: u64 = 1 << 16;

fn wrong(text: String) -> Error {
    Error::new(Code::SparseInvariant, text)
}

impl Tensor {
    /// Checks the parts of a sparse tensor, of which the first is a `self`; `parts` are in the order of the layout.
    pub fn check_sparse(
        layout: SparseLayout,
        shape: &[u64],
        is_coalesced: Option<bool>,
        parts: &[Tensor],
        cancel: &Cancel,
    ) -> Result<()> {
        // Indices that repeat are as many as a file says: those that are too many to be copied are not gone through either.
        for indices in parts.split_last().map_or(parts, |(_values, indices)| indices) {
            indices.result_bytes(&indices.layout, indices.dtype)?;
        }
        match (layout, parts) {
            (SparseLayout::Coo, [indices, values]) => {
                check_coo(shape, is_coalesced == Some(true), indices, values, cancel)
            }
            (_, [compressed, plain, values]) if layout != SparseLayout::Coo => {
                Compressed::new(layout, shape, compressed, plain, values)?.check(cancel)
            }
            _ => Err(wrong(format!("{} does not have {} parts", layout.name(), parts.len()))),
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
    let (&[sparse, count], Some((&own, dense))) =
        (&indices.layout.shape[..], values.layout.shape.split_first())
    else {
        return Err(wrong("the indices are no matrix, or there are no values".to_owned()));
    };
    let split = usize::try_from(sparse).ok().filter(|&sparse| sparse <= shape.len());
    if split.is_none_or(|split| shape[split..] != *dense) || own != count {
        let (of, inside) = (&indices.layout.shape[..], &values.layout.shape[..]);
        return Err(wrong(format!("indices of {of:?} and values of {inside:?} do not make up {shape:?}")));
    }
    if sparse == 0 {
        // There are no coordinates to read, and two values have the same.
        let text = "coordinates [] repeat or come late, but the file calls them coalesced";
        return if is_coalesced && count > 1 { Err(wrong(text.to_owned())) } else { Ok(()) };
    }
    let mut before: Option<Vec<i64>> = None;
    let step = (BLOCK / sparse).max(1);
    for start in (0..count).step_by(step as usize) {
        let stop = count.min(start + step);
        let block = read(&indices.index(&[TensorIndex::Ellipsis, range(start, stop)])?, cancel)?;
        let width = (stop - start) as usize;
        for (row, &size) in block.chunks_exact(width).zip(shape) {
            if let Some(&bad) = row.iter().find(|&&index| !is_below(index, size)) {
                return Err(wrong(format!("index {bad} lies outside a dimension of size {size}")));
            }
        }
        if is_coalesced {
            for column in 0..width {
                let place: Vec<i64> = block.iter().skip(column).step_by(width).copied().collect();
                if before.as_ref().is_some_and(|before| *before >= place) {
                    let text = format!(
                        "coordinates {place:?} repeat or come late, but the file calls them coalesced"
                    );
                    return Err(wrong(text));
                }
                before = Some(place);
            }
        }
    }
    Ok(())
}

/// A tensor of compressed rows or columns, whose parts have shapes that fit.
struct Compressed<'a> {
    compressed: &'a Tensor,
    plain: &'a Tensor,
    /// Dimensions before those of the matrices.
    batch: usize,
    /// Elements, or blocks, along the dimension that is not compressed.
    width: u64,
    /// Elements, or blocks, in each matrix.
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
        check_ints(compressed)?;
        check_ints(plain)?;
        let misfit = || {
            let [one, two, three] = [compressed, plain, values].map(|part| part.layout.shape.clone());
            let name = layout.name();
            wrong(format!("the parts of {name}, {one:?}, {two:?} and {three:?}, do not make up {shape:?}"))
        };
        let batch = compressed.layout.ndim().checked_sub(1).ok_or_else(misfit)?;
        let (of, inside, held) = (&compressed.layout.shape, &plain.layout.shape, &values.layout.shape);
        if inside.len() != batch + 1 || held.len() < batch + 1 || shape.len() < batch + 2 {
            return Err(misfit());
        }
        let blocked = matches!(layout, SparseLayout::Bsr | SparseLayout::Bsc);
        let after = batch + if blocked { 3 } else { 1 };
        let block = if blocked { held.get(batch + 1..after) } else { Some(&[1, 1][..]) };
        let Some(&[rows, columns]) = block else { return Err(misfit()) };
        if rows == 0
            || columns == 0
            || !shape[batch].is_multiple_of(rows)
            || !shape[batch + 1].is_multiple_of(columns)
        {
            return Err(misfit());
        }
        let (rows, columns) = (shape[batch] / rows, shape[batch + 1] / columns);
        let by_rows = matches!(layout, SparseLayout::Csr | SparseLayout::Bsr);
        let (lines, width) = if by_rows { (rows, columns) } else { (columns, rows) };
        let fits = of[..batch] == shape[..batch]
            && inside[..batch] == shape[..batch]
            && held[..batch] == shape[..batch]
            && Some(of[batch]) == lines.checked_add(1)
            && inside[batch] == held[batch]
            && held[after..] == shape[batch + 2..];
        if !fits {
            return Err(misfit());
        }
        Ok(Compressed { compressed, plain, batch, width, count: inside[batch] })
    }

    fn check(&self, cancel: &Cancel) -> Result<()> {
        let sizes = &self.compressed.layout.shape[..self.batch];
        let matrices = crate::layout::numel(sizes).unwrap_or(u64::MAX);
        for number in 0..matrices {
            cancel.check()?;
            let mut rest = number;
            let mut place: Vec<TensorIndex> = Vec::with_capacity(self.batch);
            for &size in sizes.iter().rev() {
                place.push(TensorIndex::At((rest % size) as i64));
                rest /= size;
            }
            place.reverse();
            self.check_matrix(&self.compressed.index(&place)?, &self.plain.index(&place)?, cancel)?;
        }
        Ok(())
    }

    fn check_matrix(&self, compressed: &Tensor, plain: &Tensor, cancel: &Cancel) -> Result<()> {
        let lines = compressed.layout.shape[0];
        let mut end = None;
        for start in (0..lines).step_by(BLOCK as usize) {
            // One bound more than lines, so that each line has both of its own.
            let stop = lines.min(start + BLOCK + 1);
            let bounds = read(&compressed.index(&[range(start, stop)])?, cancel)?;
            if start == 0 && bounds.first() != Some(&0) {
                return Err(wrong("the first line does not begin at 0".to_owned()));
            }
            for pair in bounds.windows(2) {
                let fits = is_below(pair[1], self.count.saturating_add(1))
                    && pair[0] <= pair[1]
                    && (pair[1] - pair[0]) as u64 <= self.width;
                if !fits {
                    return Err(wrong(format!(
                        "a line reaches from {} to {}, of {} columns and {} elements",
                        pair[0], pair[1], self.width, self.count
                    )));
                }
            }
            self.check_lines(&bounds, plain, cancel)?;
            end = bounds.last().copied();
        }
        if end.and_then(|end| u64::try_from(end).ok()) != Some(self.count) {
            return Err(wrong(format!("the last line ends at {end:?}, there are {} elements", self.count)));
        }
        Ok(())
    }

    /// The indices of some lines: inside the width, and growing in each line. `bounds` grow and are in range.
    fn check_lines(&self, bounds: &[i64], plain: &Tensor, cancel: &Cancel) -> Result<()> {
        let (Some(&first), Some(&last)) = (bounds.first(), bounds.last()) else { return Ok(()) };
        let (mut ends, mut end) = (bounds[1..].iter(), first);
        let mut before = -1;
        for start in (first..last).step_by(BLOCK as usize) {
            let stop = last.min(start + BLOCK as i64);
            let block = read(&plain.index(&[range(start as u64, stop as u64)])?, cancel)?;
            for (position, &index) in (start..).zip(&block) {
                while position >= end {
                    before = -1;
                    end = ends.next().copied().unwrap_or(i64::MAX);
                }
                if !is_below(index, self.width) || index <= before {
                    return Err(wrong(format!(
                        "index {index} follows {before} in a line of {} element(s)",
                        self.width
                    )));
                }
                before = index;
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

/// That indices are integers, and no more than the file can pay for where they repeat.
fn check_ints(part: &Tensor) -> Result<()> {
    if part.dtype.kind() != Kind::Int {
        return Err(wrong(format!("indices of {} are no integers", part.dtype)));
    }
    part.check_elements()?;
    part.result_bytes(&part.layout, DType::I64).map(|_| ())
}

fn read(part: &Tensor, cancel: &Cancel) -> Result<Vec<i64>> {
    let request = Request {
        dtype: Some(DType::I64),
        copy: Some(true),
        threads: Some(1),
        cancel: cancel.clone(),
        ..Request::default()
    };
    let mut bytes = part.bytes_for(DType::I64)?;
    part.materialize_into(&request, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&index| i64::from_le_bytes(index)).collect())
}
