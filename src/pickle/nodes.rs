//! The values' nodes, by handle: 8 bytes each, and a wide pool beside them for what does not fit.
//!
//! Most values of a checkpoint are short strings of the pickle itself, small integers, tuples and calls. They take two words of
//! 32 bits: memory that is not touched costs neither page faults nor cache. Anything else lies whole in the wide pool.

use super::arena::{Node, Piece, Span};
use super::pool::Pool;
use super::value::{CallId, CallKind, GlobalId, Handle};
use super::{index, narrow};
use crate::error::Result;

pub(super) struct Nodes {
    small: Pool<Small>,
    wide: Pool<Node>,
}

/// The low four bits of `head` are a tag; above them stand a length, a truth or a kind.
#[derive(Clone, Copy)]
pub(super) struct Small {
    head: u32,
    body: u32,
}

const TAG: u32 = 0xf;
const WIDE: u32 = 0;
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
    /// At most `limit` nodes, in a buffer that is there, with room for about `guess`.
    pub(super) fn with_room(limit: u64, buffer: Vec<Small>, guess: usize) -> Nodes {
        let wide = Pool::new("nodes", u64::from(u32::MAX));
        Nodes { small: Pool::with_room("nodes", limit, buffer, guess), wide }
    }

    /// Takes the buffer away, and with it the nodes.
    pub(super) fn take(&mut self) -> Vec<Small> {
        self.small.take()
    }

    /// How many there are; handles count from 0 to this.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.small.len()
    }

    #[inline(always)]
    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let small = match Small::of(node) {
            Some(small) => small,
            None => self.widen(node)?,
        };
        self.small.push(small)
    }

    /// The node of a handle; None for one of another pickle.
    #[inline(always)]
    pub(super) fn get(&self, handle: Handle) -> Node {
        self.small.get(handle.index()).map_or(Node::None, |small| self.whole(small))
    }

    pub(super) fn set(&mut self, handle: Handle, node: Node) -> Result<()> {
        let Some(&mut old) = self.small.slot(handle.index()) else { return Ok(()) };
        if old.head == WIDE
            && let Some(slot) = self.wide.slot(index(old.body))
        {
            *slot = node;
            return Ok(());
        }
        let small = match Small::of(node) {
            Some(small) => small,
            None => self.widen(node)?,
        };
        if let Some(slot) = self.small.slot(handle.index()) {
            *slot = small;
        }
        Ok(())
    }

    /// Whether a value may have been filled after it was made: a list, a dict, a set, a call, or a wide one of whatever kind.
    #[inline(always)]
    pub(super) fn may_be_filled(&self, handle: Handle) -> bool {
        let tag = self.small.get(handle.index()).map(|small| small.head & TAG);
        matches!(tag, Some(WIDE | LIST | DICT | SET | CALL))
    }

    /// All of them, by handle.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Node> + '_ {
        self.small.from(0).iter().map(|&small| self.whole(small))
    }

    #[cold]
    #[inline(never)]
    fn widen(&mut self, node: Node) -> Result<Small> {
        let body = narrow(self.wide.len());
        self.wide.push(node)?;
        Ok(Small { head: WIDE, body })
    }

    #[inline(always)]
    fn whole(&self, small: Small) -> Node {
        let Small { head, body } = small;
        let len = head >> 4;
        let piece = Piece { start: body, len, side: false };
        match head & TAG {
            NONE => Node::None,
            BOOL => Node::Bool(len > 0),
            INT => Node::Int(i64::from(body.cast_signed())),
            STR => Node::Str(piece),
            BYTES => Node::Bytes(piece),
            BYTE_ARRAY => Node::ByteArray(piece),
            LIST => Node::List(Span::default()),
            DICT => Node::Dict(Span::default()),
            SET => Node::Set(Span::default()),
            TUPLE => Node::Tuple { depth: 0, nodes: 0, start: body, len, canon: None },
            GLOBAL => Node::Global(GlobalId::at(index(body))),
            CALL => {
                let kind = KINDS.get(index(len)).copied().unwrap_or(CallKind::Reduce);
                Node::Call { kind, id: CallId::at(index(body)) }
            }
            PERSISTENT_ID => Node::PersistentId(Handle::at(index(body))),
            _ => self.wide.get(index(body)).unwrap_or(Node::None),
        }
    }
}

impl Small {
    /// The small form of a node that has one.
    #[inline(always)]
    fn of(node: Node) -> Option<Small> {
        match node {
            Node::None => Some(Small { head: NONE, body: 0 }),
            Node::Bool(value) => Small::new(BOOL, u32::from(value), 0),
            Node::Int(value) => {
                let body = i32::try_from(value).ok()?.cast_unsigned();
                Some(Small { head: INT, body })
            }
            Node::Str(piece) => Small::piece(STR, piece),
            Node::Bytes(piece) => Small::piece(BYTES, piece),
            Node::ByteArray(piece) => Small::piece(BYTE_ARRAY, piece),
            Node::List(span) if span.is_fresh() => Some(Small { head: LIST, body: 0 }),
            Node::Dict(span) if span.is_fresh() => Some(Small { head: DICT, body: 0 }),
            Node::Set(span) if span.is_fresh() => Some(Small { head: SET, body: 0 }),
            Node::Tuple { depth: 0, nodes: 0, start, len, canon: None } => Small::new(TUPLE, len, start),
            Node::Global(id) => Some(Small { head: GLOBAL, body: narrow(id.index()) }),
            Node::Call { kind, id } => {
                let kind = match kind {
                    CallKind::Reduce => 0,
                    CallKind::NewObj => 1,
                    CallKind::NewObjEx => 2,
                    CallKind::Inst => 3,
                    CallKind::Obj => 4,
                };
                Small::new(CALL, kind, narrow(id.index()))
            }
            Node::PersistentId(id) => Some(Small { head: PERSISTENT_ID, body: narrow(id.index()) }),
            _ => None,
        }
    }

    #[inline(always)]
    fn piece(tag: u32, piece: Piece) -> Option<Small> {
        if piece.side { None } else { Small::new(tag, piece.len, piece.start) }
    }

    #[inline(always)]
    fn new(tag: u32, len: u32, body: u32) -> Option<Small> {
        (len < 1 << 28).then_some(Small { head: len << 4 | tag, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Piece> {
        let len = prop_oneof![0..100_u32, (1_u32 << 28) - 2..(1 << 28) + 2, Just(u32::MAX)];
        (any::<u32>(), len, any::<bool>()).prop_map(|(start, len, side)| Piece { start, len, side })
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
            piece().prop_map(Node::BigInt),
            piece().prop_map(Node::Str),
            piece().prop_map(Node::Bytes),
            piece().prop_map(Node::ByteArray),
            span().prop_map(Node::List),
            span().prop_map(Node::Dict),
            span().prop_map(Node::Set),
            span().prop_map(Node::FrozenSet),
            (0..3u8, 0..3u16, piece(), proptest::option::of(handle())).prop_map(
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
        fn nodes_come_back_as_they_went_in(
            pushed in proptest::collection::vec(node(), 1..40),
            set in proptest::collection::vec((any::<proptest::sample::Index>(), node()), 0..40),
        ) {
            let (mut nodes, mut model) = (Nodes::with_room(1 << 20, Vec::new(), 10), pushed.clone());
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
    fn what_checkpoints_are_made_of_is_small() {
        assert_eq!((size_of::<Small>(), size_of::<Node>()), (8, 16));
        let name = Piece { start: 1 << 31, len: 80, side: false };
        let tuple = Node::Tuple { depth: 0, nodes: 0, start: 1 << 31, len: 7, canon: None };
        let call = Node::Call { kind: CallKind::Obj, id: CallId::at(1 << 31) };
        for node in [Node::Int(-1), Node::Str(name), tuple, call, Node::Dict(Span::default())] {
            assert!(Small::of(node).is_some(), "{node:?}");
        }
    }
}
