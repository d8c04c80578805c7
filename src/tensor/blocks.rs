//! Dequantizes fp8 weights that are multiplied by scales in another tensor: one for each block of 128 x 128 elements, as DeepSeek and
//! transformers write them, one for each row, or one for all. Results are bit-identical to `weight.float() * scale.float()`, cast to
//! the dtype asked for.

use super::quantized::{Block, BlockIter, offsets};
use super::{Request, Tensor};
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result, bail, error};
use crate::kernel::{Cast, convert};
use crate::layout::{Layout, numel};
use crate::opened::{Role, Scheme};
use crate::parallel;
use crate::stream::{self, Fill, Payload, Signs};

/// Rows and columns of a block (`weight_block_size` in DeepSeek's config.json). Those at the edges may be smaller.
const BLOCK_SIZE: u64 = 128;

/// What follows the name of a weight in the name of scales that are by block, or one for all.
const BLOCKS_SUFFIX: &str = "_scale_inv";

/// The scales of a tensor, in f32.
struct BlockScales {
    scales: Vec<f32>,
    /// How they are spread; `None` for one scale for all elements.
    grid: Option<Grid>,
}

/// Which elements of the matrices of a tensor have a scale of their own.
#[derive(Clone, Copy)]
struct Grid {
    rows: u64,
    columns: u64,
    /// Rows and columns of a block.
    block: (u64, u64),
}

/// For a tensor that may have scales in another one: a layout of the same shape that maps each element to its position in C order.
pub(super) fn position_layout(dtype: DType, layout: &Layout) -> Option<Box<Layout>> {
    let is_fp8 = matches!(dtype, DType::F8E4M3Fn | DType::F8E5M2);
    if is_fp8 { Layout::contiguous(&layout.shape).ok().map(Box::new) } else { None }
}

impl Tensor {
    /// The scales of an fp8 tensor, as a tensor; `None` for other tensors.
    pub(crate) fn block_scale(&self) -> Option<Tensor> {
        let Role::Codes(Scheme::Fp8 { scale: entry }) = self.role() else { return None };
        Some(Tensor::new(&self.opened, self.opened.id(self.opened.entry(entry)), Some(entry)))
    }

    /// Writes the elements of `layout`, multiplied by their scales, to `out` as floats of `dtype`. Fails where `dtype` is not a float
    /// type, and where the scales are not those of blocks of the tensor.
    pub(super) fn dequantize_blocks(
        &self,
        scale: &Tensor,
        layout: &Layout,
        dtype: DType,
        request: &Request,
        out: &mut [u8],
    ) -> Result<()> {
        if dtype.kind() != Kind::Float {
            bail!(Code::Value, "a tensor is dequantized to a float dtype, not to {dtype}");
        }
        let scales = self.block_scales(scale, request)?;
        let missing = || Error::new(Code::InternalError, "a tensor with scales by block has no positions");
        let positions = request.order.apply(self.channel_layout.as_deref().ok_or_else(missing)?)?;
        let payload = match self.is_in_chunks()? {
            true => None,
            false => Some(self.opened.payload(self.storage(), &request.cancel)?),
        };
        let to_float = Fill {
            signs: Signs::default(),
            cast: Cast::new(self.dtype, DType::F32, request.overflow)?,
            threads: Some(1),
            cancel: request.cancel.clone(),
        };
        let to_dtype = Cast::new(DType::F32, dtype, request.overflow)?;
        let threads = parallel::threads(out.len() as u64, request.threads);
        let blocks = BlockIter {
            layout: layout.clone(),
            channel_layout: Some(positions),
            itemsize: dtype.itemsize(),
            out,
            done: 0,
        };
        parallel::for_each(threads, blocks, Vec::new, |floats, block| {
            let (layout, positions, out): Block<'_> = block?;
            floats.resize(layout.numel() as usize * size_of::<f32>(), 0);
            self.fill_floats(payload.as_ref(), &layout, &to_float, floats)?;
            scales.multiply(&positions.ok_or_else(missing)?, floats)?;
            convert(to_dtype, floats, out)
        })
    }

    /// Reads the elements of `layout` as f32.
    fn fill_floats(
        &self,
        payload: Option<&Payload>,
        layout: &Layout,
        how: &Fill,
        out: &mut [u8],
    ) -> Result<()> {
        match payload {
            Some(payload) => stream::fill(payload, layout, how, out),
            None => stream::fill_joined(self.join_parts(layout, how)?, &layout.shape, Some(1), out)
                .map_err(|(_, error)| error),
        }
    }

    /// How scales of this shape are spread over the tensor; `None` for one scale for all elements. Fails with `TensorBounds` where
    /// the shape is not that of one scale, of one for each block, or of one for each row of a matrix.
    fn grid(&self, scale: &Tensor) -> Result<Option<Grid>> {
        let whole = &self.opened.tensor(self.id).layout().shape;
        let shape = scale.shape();
        // `_scale_inv` is by block alone.
        let is_free = !scale.name().ends_with(BLOCKS_SUFFIX);
        if numel(shape) == Some(1) && (shape.len() < 2 || (is_free && shape.len() == 2)) {
            return Ok(None);
        }
        if let [leading @ .., rows, columns] = &whole[..] {
            let (rows, columns) = (*rows, *columns);
            let by_row = is_free && leading.is_empty() && (shape == [rows] || shape == [rows, 1]);
            let counts = [rows.div_ceil(BLOCK_SIZE), columns.div_ceil(BLOCK_SIZE)];
            if by_row {
                return Ok(Some(Grid { rows, columns, block: (1, columns.max(1)) }));
            }
            if shape.split_last_chunk() == Some((leading, &counts)) {
                return Ok(Some(Grid { rows, columns, block: (BLOCK_SIZE, BLOCK_SIZE) }));
            }
        }
        Err(error!(
            Code::TensorBounds,
            "the scales {:?} of shape {shape:?} are not those of blocks of {BLOCK_SIZE} x {BLOCK_SIZE} of a tensor of {:?}",
            scale.name(),
            &whole[..]
        ))
    }

    /// Reads the scales, of which bytes are exponents (`float8_e8m0fnu`). Fails with `TensorBounds` where their shape does not fit, and
    /// with `QuantUnknown` for other integers.
    fn block_scales(&self, scale: &Tensor, request: &Request) -> Result<BlockScales> {
        let grid = self.grid(scale)?;
        let dtype = if scale.dtype == DType::U8 { DType::F8E8M0Fnu } else { scale.dtype };
        if dtype.kind() != Kind::Float {
            bail!(
                Code::QuantUnknown,
                "the scales {:?} are {dtype}, and no floats or exponents",
                scale.name()
            );
        }
        let scale = Tensor { dtype, ..scale.clone() };
        scale.repeated_bytes(DType::F32)?;
        let bytes = scale.numbers(DType::F32, None, &request.cancel)?;
        let scales = bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect();
        Ok(BlockScales { scales, grid })
    }
}

impl BlockScales {
    /// Multiplies floats by their scales. `positions` maps each to its position in the whole tensor, in C order.
    fn multiply(&self, positions: &Layout, floats: &mut [u8]) -> Result<()> {
        let floats = floats.as_chunks_mut().0;
        let Some(Grid { columns, block: (_, width), .. }) = self.grid else {
            multiply(floats, self.scale(0)?);
            return Ok(());
        };
        let (Some(&len), Some(&1)) = (positions.shape.last(), positions.strides.last()) else {
            for (float, position) in floats.iter_mut().zip(offsets(positions)) {
                multiply(std::slice::from_mut(float), self.scale(position)?);
            }
            return Ok(());
        };
        // Runs of a row, cut where the block changes. `len` is not 0, as there are no blocks without elements.
        let starts = Layout {
            shape: positions.shape[..positions.ndim() - 1].into(),
            strides: positions.strides[..positions.ndim() - 1].into(),
            offset: positions.offset,
        };
        for (run, start) in floats.chunks_mut(len as usize).zip(offsets(&starts)) {
            let mut position = start;
            let mut rest = run;
            while !rest.is_empty() {
                let column = position % columns;
                let end = (column / width + 1).saturating_mul(width).min(columns);
                let count = ((end - column) as usize).min(rest.len());
                let (own, others) = rest.split_at_mut(count);
                multiply(own, self.scale(position)?);
                position += count as u64;
                rest = others;
            }
        }
        Ok(())
    }

    /// The scale of the element at a position in C order.
    fn scale(&self, position: u64) -> Result<f32> {
        let index = match self.grid {
            None => 0,
            Some(Grid { rows, columns, block: (height, width) }) => {
                let (column, row) = (position % columns, position / columns % rows);
                let matrix = position / columns / rows;
                let block_row = matrix * rows.div_ceil(height) + row / height;
                block_row * columns.div_ceil(width) + column / width
            }
        };
        let outside = || Error::new(Code::InternalError, "an element is in no block of the scales");
        usize::try_from(index).ok().and_then(|index| self.scales.get(index).copied()).ok_or_else(outside)
    }
}

fn multiply(floats: &mut [[u8; 4]], scale: f32) {
    floats.iter_mut().for_each(|float| *float = (f32::from_le_bytes(*float) * scale).to_le_bytes());
}
