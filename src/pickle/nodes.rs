//! The node table: one compact node of 8 bytes per handle, and an overflow pool for nodes that do not fit.
//!
//! Most values of a checkpoint are short strings of the pickle itself, small integers, tuples and calls. They take two words of
//! 32 bits: less memory touched means fewer page faults and cache misses. Every other node is whole in the overflow pool, and its
//! compact node is an index into it.

use super::arena::{ByteRange, Node, Span};
use super::bounded_vec::BoundedVec;
use super::value::{CallId, CallKind, GlobalId, Handle};
use crate::error::Result;
use crate::num::{to_u32, u32_to_usize};

pub(super) struct Nodes {
    compact: BoundedVec<CompactNode>,
    overflow: BoundedVec<Node>,
}

/// The low four bits of `head` are the tag; the upper 28 bits are a length, a boolean or a call kind.
#[derive(Clone, Copy)]
struct CompactNode {
    head: u32,
    body: u32,
}

/// The bits of `head` that are the tag, one of the constants below.
const TAG_MASK: u32 = 0xf;
const OVERFLOW: u32 = 0;
const NONE: u32 = 1;
const BOOL: u32 = 2;
const INT: u32 = 3;
const STR: u32 = 4;
const BYTES: u32 = 5;
const BYTE_ARRAY: u32 = 6;
const LIST: u32 = 7;
const DICT: u32 = 8;
const SET: u32 = 9;
const TUPLE: u32 = 10;
const GLOBAL: u32 = 11;
const CALL: u32 = 12;
const PERSISTENT_ID: u32 = 13;

const KINDS: [CallKind; 5] =
    [CallKind::Reduce, CallKind::NewObj, CallKind::NewObjEx, CallKind::Inst, CallKind::Obj];

impl Nodes {
    /// At most `limit` nodes, with capacity for about `guess`.
    pub(super) fn with_capacity_hint(limit: u64, guess: usize) -> Nodes {
        let overflow = BoundedVec::new("nodes", u64::from(u32::MAX));
        Nodes { compact: BoundedVec::with_capacity_hint("nodes", limit, guess), overflow }
    }

    /// The number of nodes; handles count from 0 to this.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.compact.len()
    }

    #[inline(always)]
    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let compact = match CompactNode::pack(node) {
            Some(compact) => compact,
            None => self.push_overflow(node)?,
        };
        self.compact.push(compact)
    }

    /// The node of a handle; `Node::None` for a handle of another pickle that is out of range here.
    #[inline(always)]
    pub(super) fn get(&self, handle: Handle) -> Node {
        self.compact.get(handle.index()).map_or(Node::None, |compact| self.unpack(compact))
    }

    pub(super) fn set(&mut self, handle: Handle, node: Node) -> Result<()> {
        let Some(&mut old) = self.compact.get_mut(handle.index()) else { return Ok(()) };
        if old.head == OVERFLOW
            && let Some(slot) = self.overflow.get_mut(u32_to_usize(old.body))
        {
            *slot = node;
            return Ok(());
        }
        let compact = match CompactNode::pack(node) {
            Some(compact) => compact,
            None => self.push_overflow(node)?,
        };
        if let Some(slot) = self.compact.get_mut(handle.index()) {
            *slot = compact;
        }
        Ok(())
    }

    /// Whether a value may be changed after it is made: a list, a dict, a set, a call, or any value in the overflow pool.
    #[inline(always)]
    pub(super) fn may_be_mutable(&self, handle: Handle) -> bool {
        let tag = self.compact.get(handle.index()).map(|compact| compact.head & TAG_MASK);
        matches!(tag, Some(OVERFLOW | LIST | DICT | SET | CALL))
    }

    /// All nodes, in the order of their handles.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Node> + '_ {
        self.compact.slice_from(0).iter().map(|&compact| self.unpack(compact))
    }

    #[cold]
    #[inline(never)]
    fn push_overflow(&mut self, node: Node) -> Result<CompactNode> {
        let body = to_u32(self.overflow.len());
        self.overflow.push(node)?;
        Ok(CompactNode { head: OVERFLOW, body })
    }

    #[inline(always)]
    fn unpack(&self, compact: CompactNode) -> Node {
        let CompactNode { head, body } = compact;
        let len = head >> 4;
        let range = ByteRange { start: body, len, decoded: false, is_byte_string: false };
        match head & TAG_MASK {
            NONE => Node::None,
            BOOL => Node::Bool(len > 0),
            INT => Node::Int(i64::from(body.cast_signed())),
            STR => Node::Str(range),
            BYTES => Node::Bytes(range),
            BYTE_ARRAY => Node::ByteArray(range),
            LIST => Node::List(Span::default()),
            DICT => Node::Dict(Span::default()),
            SET => Node::Set(Span::default()),
            TUPLE => Node::Tuple { depth: 0, nodes: 0, start: body, len, canon: None },
            GLOBAL => Node::Global(GlobalId::at(u32_to_usize(body))),
            CALL => {
                let kind = KINDS.get(u32_to_usize(len)).copied().unwrap_or(CallKind::Reduce);
                Node::Call { kind, id: CallId::at(u32_to_usize(body)) }
            }
            PERSISTENT_ID => Node::PersistentId(Handle::at(u32_to_usize(body))),
            _ => self.overflow.get(u32_to_usize(body)).unwrap_or(Node::None),
        }
    }
}

impl CompactNode {
    /// The compact form of a node; `None` where it does not fit.
    #[inline(always)]
    fn pack(node: Node) -> Option<CompactNode> {
        match node {
            Node::None => Some(CompactNode { head: NONE, body: 0 }),
            Node::Bool(value) => CompactNode::new(BOOL, u32::from(value), 0),
            Node::Int(value) => {
                let body = i32::try_from(value).ok()?.cast_unsigned();
                Some(CompactNode { head: INT, body })
            }
            Node::Str(range) => CompactNode::pack_range(STR, range),
            Node::Bytes(range) => CompactNode::pack_range(BYTES, range),
            Node::ByteArray(range) => CompactNode::pack_range(BYTE_ARRAY, range),
            Node::List(span) if span.is_unused() => Some(CompactNode { head: LIST, body: 0 }),
            Node::Dict(span) if span.is_unused() => Some(CompactNode { head: DICT, body: 0 }),
            Node::Set(span) if span.is_unused() => Some(CompactNode { head: SET, body: 0 }),
            Node::Tuple { depth: 0, nodes: 0, start, len, canon: None } => {
                CompactNode::new(TUPLE, len, start)
            }
            Node::Global(id) => Some(CompactNode { head: GLOBAL, body: to_u32(id.index()) }),
            Node::Call { kind, id } => {
                let kind = match kind {
                    CallKind::Reduce => 0,
                    CallKind::NewObj => 1,
                    CallKind::NewObjEx => 2,
                    CallKind::Inst => 3,
                    CallKind::Obj => 4,
                };
                CompactNode::new(CALL, kind, to_u32(id.index()))
            }
            Node::PersistentId(id) => Some(CompactNode { head: PERSISTENT_ID, body: to_u32(id.index()) }),
            _ => None,
        }
    }

    #[inline(always)]
    fn pack_range(tag: u32, range: ByteRange) -> Option<CompactNode> {
        if range.decoded || range.is_byte_string {
            None
        } else {
            CompactNode::new(tag, range.len, range.start)
        }
    }

    #[inline(always)]
    fn new(tag: u32, len: u32, body: u32) -> Option<CompactNode> {
        (len < 1 << 28).then_some(CompactNode { head: len << 4 | tag, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = ByteRange> {
        let len = prop_oneof![0..100_u32, (1_u32 << 28) - 2..(1 << 28) + 2, Just(u32::MAX)];
        (any::<u32>(), len, any::<bool>(), any::<bool>()).prop_map(|(start, len, decoded, is_byte_string)| {
            ByteRange { start, len, decoded, is_byte_string }
        })
    }

    fn handle() -> impl Strategy<Value = Handle> {
        (0..0xffff_fff0_usize).prop_map(Handle::at)
    }

    fn span() -> impl Strategy<Value = Span> {
        prop_oneof![
            Just(Span::default()),
            (any::<u32>(), any::<u32>()).prop_map(|(at, len)| Span::of(at, len))
        ]
    }

    fn node() -> impl Strategy<Value = Node> {
        let id = 0..0xffff_fff0_usize;
        prop_oneof![
            Just(Node::None),
            any::<bool>().prop_map(Node::Bool),
            prop_oneof![any::<i64>(), -5..5i64, (1_i64 << 31) - 2..(1 << 31) + 2].prop_map(Node::Int),
            any::<f64>().prop_map(Node::Float),
            range().prop_map(Node::BigInt),
            range().prop_map(Node::Str),
            range().prop_map(Node::Bytes),
            range().prop_map(Node::ByteArray),
            span().prop_map(Node::List),
            span().prop_map(Node::Dict),
            span().prop_map(Node::Set),
            span().prop_map(Node::FrozenSet),
            (0..3u8, 0..3u16, range(), proptest::option::of(handle())).prop_map(
                |(depth, nodes, at, canon)| {
                    Node::Tuple { depth, nodes, start: at.start, len: at.len, canon }
                }
            ),
            id.clone().prop_map(|id| Node::Global(GlobalId::at(id))),
            (0..KINDS.len(), id).prop_map(|(kind, id)| Node::Call { kind: KINDS[kind], id: CallId::at(id) }),
            handle().prop_map(Node::PersistentId),
        ]
    }

    proptest! {
        #[test]
        fn nodes_round_trip(
            pushed in proptest::collection::vec(node(), 1..40),
            set in proptest::collection::vec((any::<proptest::sample::Index>(), node()), 0..40),
        ) {
            let (mut nodes, mut model) = (Nodes::with_capacity_hint(1 << 20, 10), pushed.clone());
            for node in pushed {
                nodes.push(node).unwrap();
            }
            for (at, node) in set {
                let at = at.index(model.len());
                nodes.set(Handle::at(at), node).unwrap();
                model[at] = node;
            }
            let text = |node: &Node| format!("{node:?}");
            let found: Vec<String> = (0..model.len()).map(|at| text(&nodes.get(Handle::at(at)))).collect();
            prop_assert_eq!(&found, &model.iter().map(text).collect::<Vec<_>>());
            prop_assert_eq!(nodes.iter().map(|node| text(&node)).collect::<Vec<_>>(), found);
        }
    }

    #[test]
    fn common_nodes_are_compact() {
        assert_eq!((size_of::<CompactNode>(), size_of::<Node>()), (8, 16));
        let name = ByteRange { start: 1 << 31, len: 80, decoded: false, is_byte_string: false };
        let tuple = Node::Tuple { depth: 0, nodes: 0, start: 1 << 31, len: 7, canon: None };
        let call = Node::Call { kind: CallKind::Obj, id: CallId::at(1 << 31) };
        for node in [Node::Int(-1), Node::Str(name), tuple, call, Node::Dict(Span::default())] {
            assert!(CompactNode::pack(node).is_some(), "{node:?}");
        }
    }
}
