//! Tensors of distributed programs: a DTensor or ShardedTensor is read as the part that the process held.
//!
//! The forms are those of `torch/_tensor.py` (`_reduce_ex_internal` of a wrapper subclass), `torch/distributed/tensor/_api.py`,
//! `_dtensor_spec.py`, `placement_types.py`, `device_mesh.py` and `_shard/sharded_tensor/api.py`. torch before 2.5 had DTensor in
//! `torch.distributed._tensor`. A value in another form stays opaque. A part whose place is not stated in a known way has none.

use smallvec::SmallVec;

use super::CallInterpreter;
use crate::error::Result;
use crate::index::model::{Along, Flags, Part, Placement};
use crate::index::pickled::known::Known;
use crate::layout::Dims;
use crate::num::to_u64;
use crate::pickle::{CallKind, Handle, Snapshot, Value};

/// The most fields of one object: several times as many as any class has.
const FIELDS_MAX: usize = 32;

/// The fields of one object.
type Fields<'a> = SmallVec<[(&'a str, Handle); 8]>;

/// What a file has of a distributed tensor.
struct Local {
    /// The number of the part, which is a tensor of its own.
    tensor: u32,
    is_parameter: bool,
    part: Part,
}

impl<'a> CallInterpreter<'a> {
    /// Adds the part that `_rebuild_from_type_v2(_rebuild_wrapper_subclass, class, args, state)` holds of a tensor; `None` for other
    /// classes and forms.
    pub(super) fn part(&mut self, class: Handle, args: &[Handle], state: Handle) -> Result<Option<u32>> {
        let Value::Global(class) = self.values.get(class) else { return Ok(None) };
        let global = self.values.global(class);
        let &[_, dtype, shape, _, _, _, _, requires_grad] = args else { return Ok(None) };
        let (Some(Known::Dtype(dtype)), Some(shape), Value::Bool(requires_grad)) =
            (self.known(dtype), self.dims(shape), self.values.get(requires_grad))
        else {
            return Ok(None);
        };
        let local = match (global.module, global.name) {
            (
                "torch.distributed.tensor"
                | "torch.distributed.tensor._api"
                | "torch.distributed._tensor"
                | "torch.distributed._tensor.api",
                "DTensor",
            ) => self.dtensor(&shape, state),
            ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor") => self.sharded(&shape, state),
            _ => None,
        };
        let Some(Local { tensor, is_parameter, part }) = local else {
            self.mark_shards(&shape, state);
            return Ok(None);
        };
        if self.tensor_mut(tensor).is_none_or(|tensor| tensor.dtype() != dtype) {
            return Ok(None);
        }
        let flags = |flags| Flags { parameter: is_parameter, requires_grad, ..flags };
        let tensor = self.copy(tensor, flags)?;
        let state = Snapshot { value: state, offset: self.now };
        let extra = self.extra(tensor);
        extra.class = Some(class);
        extra.states.push(state);
        extra.part = Some(Box::new(part));
        Ok(Some(tensor))
    }

    /// A DTensor, by its attributes and slots.
    fn dtensor(&self, shape: &[u64], state: Handle) -> Option<Local> {
        let fields = self.state_fields(Snapshot { value: state, offset: self.now })?;
        let (tensor, local) = self.tensor_id(field(&fields, "_local_tensor")?)?;
        let flag = field(&fields, "_is_param").map(|flag| self.values.get(flag));
        let is_parameter = matches!(flag, Some(Value::Bool(true)));
        let placed = self.placement(field(&fields, "_spec")?);
        let mut part = Part { shape: Some(shape.into()), ..Part::default() };
        if let Some((placement, order)) = placed {
            let cut = placement.cut(shape, &order).filter(|(_, sizes)| *sizes == local.layout().shape);
            part.offsets = cut.map(|(offsets, _)| offsets);
            part.placement = Some(placement);
        }
        Some(Local { tensor, is_parameter, part })
    }

    /// The placement that a `DTensorSpec` states, and for some dimensions of the tensor the order in which the mesh cuts them.
    fn placement(&self, spec: Handle) -> Option<(Placement, Vec<(usize, Dims)>)> {
        let spec = self.object(spec, &["DTensorSpec"])?;
        let mesh = self.object(field(&spec, "mesh")?, &["DeviceMesh"])?;
        let coordinate = self.dims(field(&mesh, "_coordinate_on_dim")?)?;
        let sizes = match (field(&mesh, "_layout"), field(&mesh, "mesh")) {
            (Some(layout), _) => self.mesh_sizes(layout)?,
            (None, Some(mesh)) => self.tensor_at(mesh)?.layout().shape.clone(),
            _ => return None,
        };
        let along = self.items(field(&spec, "placements")?)?;
        let along: Box<[Along]> =
            along.iter().map(|&placement| self.along(placement)).collect::<Option<_>>()?;
        if along.len() != sizes.len() || coordinate.len() != sizes.len() {
            return None;
        }
        let order = match field(&spec, "shard_order") {
            Some(order) if self.values.get(order) != Value::None => self.shard_order(order)?,
            _ => Vec::new(),
        };
        Some((Placement { mesh: sizes, coordinate, along }, order))
    }

    /// The size of each dimension of a `_MeshLayout`: torch 2.9 to 2.11 had a shape, whose dimensions may consist of several.
    fn mesh_sizes(&self, layout: Handle) -> Option<Dims> {
        let layout = self.object(layout, &["_MeshLayout"])?;
        let size = |handle| match self.values.get(handle) {
            Value::Int(_) => self.values.count_at(handle),
            _ => self.dims(handle)?.iter().try_fold(1_u64, |all, &size| all.checked_mul(size)),
        };
        if let Some(axes) = field(&layout, "axes") {
            let axis = |&axis: &Handle| size(field(&self.object(axis, &["_FlatLayout"])?, "shape")?);
            return self.items(axes)?.iter().map(axis).collect();
        }
        let shape = field(&layout, "shape")?;
        match self.values.get(shape) {
            Value::Int(size) => Some(Dims::from_elem(u64::try_from(size).ok()?, 1)),
            _ => self.items(shape)?.iter().map(|&one| size(one)).collect(),
        }
    }

    /// One placement.
    fn along(&self, placement: Handle) -> Option<Along> {
        let dim = |fields: &Fields<'a>| usize::try_from(self.values.count_at(field(fields, "dim")?)?).ok();
        Some(match self.class_name(placement)? {
            "Replicate" => Along::Replicate,
            "Shard" => Along::Shard(dim(&self.object(placement, &["Shard"])?)?),
            "_StridedShard" => {
                let fields = self.object(placement, &["_StridedShard"])?;
                let factor = self.values.count_at(field(&fields, "split_factor")?)?;
                Along::StridedShard(dim(&fields)?, factor)
            }
            "Partial" | "_Partial" | "_MaskPartial" | "_NormPartial" => Along::Partial,
            _ => return None,
        })
    }

    /// The entries `ShardOrderEntry(tensor_dim, mesh_dims)`.
    fn shard_order(&self, order: Handle) -> Option<Vec<(usize, Dims)>> {
        let entry = |&entry: &Handle| {
            let args = self.values.get(self.values.call_at(entry)?.args);
            let (true, Value::Tuple(&[dim, mesh_dims])) =
                (self.class_name(entry)? == "ShardOrderEntry", args)
            else {
                return None;
            };
            Some((usize::try_from(self.values.count_at(dim)?).ok()?, self.dims(mesh_dims)?))
        };
        self.items(order)?.iter().map(entry).collect()
    }

    /// A ShardedTensor of one local shard: `(local_shards, metadata, process_group_state, sharding_spec, init_rrefs)`.
    fn sharded(&self, shape: &[u64], state: Handle) -> Option<Local> {
        let Value::Tuple(&[shards, ..]) = self.get(state) else { return None };
        let &[shard] = self.items(shards)? else { return None };
        let shard = self.object(shard, &["Shard"])?;
        let (tensor, local) = self.tensor_id(field(&shard, "tensor")?)?;
        let metadata = self.object(field(&shard, "metadata")?, &["ShardMetadata"])?;
        let offsets = self.dims(field(&metadata, "shard_offsets")?)?;
        let sizes = self.dims(field(&metadata, "shard_sizes")?)?;
        let is_stated = sizes == local.layout().shape && offsets.len() == shape.len();
        let part = Part { shape: Some(shape.into()), offsets: is_stated.then_some(offsets), placement: None };
        Some(Local { tensor, is_parameter: false, part })
    }

    /// Marks the tensors in a ShardedTensor of another number of shards as parts, so that those of several files are not taken for copies.
    /// Ends at what is marked already, or is no shard: any number of objects may have one list.
    fn mark_shards(&mut self, shape: &Dims, state: Handle) {
        let Value::Tuple(&[shards, ..]) = self.get(state) else { return };
        for &shard in self.items(shards).unwrap_or_default() {
            let fields = self.object(shard, &["Shard"]);
            let tensor = fields.and_then(|fields| self.tensor_id(field(&fields, "tensor")?));
            let Some((tensor, _)) = tensor else { return };
            let part = &mut self.extra(tensor).part;
            if part.is_some() {
                return;
            }
            *part = Some(Box::new(Part { shape: Some(shape.clone()), ..Part::default() }));
        }
    }

    /// The fields of an object of torch.distributed of one of these classes, which was made without arguments and has one state.
    fn object(&self, handle: Handle, classes: &[&str]) -> Option<Fields<'a>> {
        let name = self.class_name(handle)?;
        let call = self.values.call_at(handle)?;
        let is_plain = call.kind == CallKind::NewObj && call.items.is_empty() && call.appended.is_empty();
        let (true, &[state]) = (is_plain && classes.contains(&name), call.states) else { return None };
        if !matches!(self.values.get(call.args), Value::Tuple([])) || state.offset > self.now {
            return None;
        }
        self.state_fields(state)
    }

    /// The name of the class of torch.distributed that a value is an object of.
    fn class_name(&self, handle: Handle) -> Option<&'a str> {
        let (module, name) = self.values.global_at(self.values.call_at(handle)?.callable)?;
        module.starts_with("torch.distributed.").then_some(name)
    }

    /// The attributes that a state sets: those of a dict, or of a pair of dicts, of which the second one has the slots.
    fn state_fields(&self, state: Snapshot) -> Option<Fields<'a>> {
        let parts: &[Handle] = match self.values.get_at(state) {
            Value::Tuple(parts @ [_, _]) => parts,
            _ => &[state.value],
        };
        let mut fields = Fields::new();
        for &part in parts {
            let pairs = match self.values.get_at(Snapshot { value: part, offset: state.offset }) {
                Value::Dict(pairs) => pairs,
                Value::None => continue,
                _ => return None,
            };
            if pairs.len() > FIELDS_MAX {
                return None;
            }
            for &(key, value) in pairs {
                let Value::Str(key) = self.values.get(key) else { return None };
                let key = key.as_str()?;
                // torch sets each once.
                if field(&fields, key).is_some() {
                    return None;
                }
                fields.push((key, value));
            }
        }
        Some(fields)
    }

    /// The items of a tuple or list, of at most as many as a tensor may have dimensions.
    fn items(&self, handle: Handle) -> Option<&'a [Handle]> {
        let (Value::Tuple(items) | Value::List(items)) = self.get(handle) else { return None };
        (to_u64(items.len()) <= self.limits.rank).then_some(items)
    }

    /// Numbers that are not negative, in a tuple or list.
    fn dims(&self, handle: Handle) -> Option<Dims> {
        self.items(handle)?.iter().map(|&item| self.values.count_at(item)).collect()
    }
}

fn field(fields: &Fields<'_>, name: &str) -> Option<Handle> {
    fields.iter().find(|(own, _)| *own == name).map(|&(_, value)| value)
}
