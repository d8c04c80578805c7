//! Local file headers where requests are expensive: read and verified together with the payload, or many at once
//! ([decision](../../../docs/explain/decisions/2026-11-24-deferred-proof-of-local-headers.md)).
//!
//! The central directory says between which two offsets a payload begins: after a header without extra field, and so that the payload
//! still ends before the next member. Writers leave a few bytes between the two, the padding for alignment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::local_header::{self, Unverified};
use super::{Archive, Member, VERIFYING, no_member};
use crate::bytes::{Fetched, Proof, Region, Requests, Source};
use crate::error::{Code, Result};
use crate::parallel::Cancel;

/// If the payload may begin at more offsets than this, the header is read first.
const SLACK_MAX_BYTES: u64 = 8 << 10;

/// Members whose headers are planned, read and verified together.
const CHECKED_TOGETHER: usize = 8192;

/// What [`Archive::check_members`] leaves of the limits for other metadata.
const RESERVED: Requests = Requests { count: 64, bytes: 4 << 20 };

/// A member of which the local file header was compared with the central directory.
pub struct CheckedMember {
    /// As [`Archive::payload`] gives it.
    pub payload: Result<Region>,
    /// The first stored bytes; `None` if they were not read with the header.
    pub head: Option<Vec<u8>>,
}

/// The proof of a member's payload: its local file header.
struct HeaderProof {
    archive: Arc<Archive>,
    index: usize,
    unverified: Unverified,
}

impl Archive {
    /// The stored (maybe compressed) bytes of a member, as [`Archive::payload`] gives their region. Where requests are expensive, the
    /// local file header is read and verified together with the first of them.
    pub fn payload_source(self: &Arc<Archive>, index: usize) -> Result<Source> {
        if self.defers_member(index)
            && self.verified_start(index).is_none()
            && let Some(member) = self.members.get(index)
            && let Some(unverified) = local_header::unverified(member)
            && unverified.slack <= SLACK_MAX_BYTES
        {
            let earliest = unverified.earliest;
            let proof = HeaderProof { archive: self.clone(), index, unverified };
            return self.source.with_proof(earliest, member.compressed_size(), Arc::new(proof));
        }
        let region = self.payload(index)?;
        self.source.window(region.start(), region.len())
    }

    /// Verifies the local file headers of many members ahead of [`Archive::payload`], with one read for small neighbours, and several
    /// at once where requests are expensive. A header and a data descriptor that are read later, between payloads, wait behind what the
    /// system reads ahead. Errors are not reported here; `payload` finds them again.
    pub fn verify_headers(&self, indices: impl IntoIterator<Item = usize>) {
        let is_new = |index: &usize| self.verified_start(*index).is_none();
        let members: Vec<usize> = indices.into_iter().filter(is_new).collect();
        let access = self.source.access();
        let gap = if self.defers { access.gap } else { access.small };
        for members in members.chunks(CHECKED_TOGETHER) {
            let wanted = self.head_ranges(members, 0);
            let Ok(fetched) = self.source.gather(&wanted, gap, &Cancel::new()) else { return };
            for &index in members {
                // `payload` finds the error again.
                drop(self.payload_from(index, &fetched));
            }
        }
    }

    /// As [`Archive::payload`], with bytes that were read already.
    fn payload_from(&self, index: usize, fetched: &Fetched) -> Result<Region> {
        let member = self.member(index)?;
        if self.verified_start(index).is_some() {
            return self.payload(index);
        }
        let read = |at: u64, len: u64| match fetched.get(at, len) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => self.source.read_vec(at, len),
        };
        self.verify_header(index, member, read).map_err(|error| self.locate(member, error))
    }
}

impl Archive {
    /// Verifies the local file headers of all members and reads the first `head_len` stored bytes of each, with few requests and
    /// several at once. A member is `None` if the limits `remote_requests` and `remote_bytes` do not suffice for it.
    pub fn check_members(&self, head_len: u64, cancel: &Cancel) -> Result<Vec<Option<CheckedMember>>> {
        let count = self.members.len();
        let mut out: Vec<Option<CheckedMember>> = (0..count).map(|_| None).collect();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&index| self.members.get(index).map_or(0, Member::header_offset));
        let mut rest = &order[..];
        while !rest.is_empty() {
            let mut len = rest.len().min(CHECKED_TOGETHER);
            let (wanted, gap) = loop {
                let wanted = self.head_ranges(rest.get(..len).unwrap_or_default(), head_len);
                match self.source.affordable_gap(&wanted, RESERVED)? {
                    Some(gap) => break (wanted, gap),
                    None if len <= 1 => return Ok(out),
                    None => len /= 2,
                }
            };
            let fetched = self.source.gather(&wanted, gap, cancel)?;
            let (now, later) = rest.split_at(len);
            rest = later;
            for &index in now {
                let payload = self.payload_from(index, &fetched);
                if payload.as_ref().is_err_and(|error| error.code() == Code::Limit) {
                    return Ok(out);
                }
                let head = |region: &Region| fetched.get(region.start(), region.len().min(head_len));
                let head = payload.as_ref().ok().and_then(head).map(<[u8]>::to_vec);
                if let Some(slot) = out.get_mut(index) {
                    *slot = Some(CheckedMember { payload, head });
                }
            }
        }
        Ok(out)
    }

    /// The ranges with the headers of these members and the first `head_len` bytes behind them; none of members whose header may be long.
    fn head_ranges(&self, members: &[usize], head_len: u64) -> Vec<Region> {
        let mut out = Vec::new();
        for member in members.iter().filter_map(|&index| self.members.get(index)) {
            let Some(found) = local_header::unverified(member).filter(|found| found.slack <= SLACK_MAX_BYTES)
            else {
                continue;
            };
            let head_len = head_len.min(member.compressed_size());
            out.extend(Region::new(found.earliest, found.slack.saturating_add(head_len)));
            out.extend(found.ranges);
        }
        out
    }
}

impl HeaderProof {
    fn member(&self) -> Result<&Member> {
        self.archive.member(self.index)
    }

    /// Replaces `from` by `to` in what is stored for the member. False if something else is stored.
    fn replace(&self, from: u64, to: u64) -> bool {
        let slot = self.archive.payloads.get(self.index);
        slot.is_some_and(|slot| slot.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }
}

impl Proof for HeaderProof {
    fn ranges(&self) -> SmallVec<[Region; 2]> {
        self.unverified.ranges.clone()
    }

    fn slack(&self) -> u64 {
        self.unverified.slack
    }

    fn shift(&self) -> Option<u64> {
        self.archive.verified_start(self.index)?.checked_sub(self.unverified.earliest)
    }

    fn prove(&self, read: &dyn Fn(u64, u64) -> Result<Vec<u8>>) -> Result<u64> {
        let member = self.member()?;
        let verified = self.archive.verify_header(self.index, member, read);
        let region = verified.map_err(|error| self.archive.locate(member, error))?;
        region.start().checked_sub(self.unverified.earliest).ok_or_else(|| no_member(self.index))
    }

    fn begin(&self) -> bool {
        self.replace(0, VERIFYING)
    }

    fn is_begun(&self) -> bool {
        self.archive.payloads.get(self.index).is_some_and(|slot| slot.load(Ordering::Relaxed) == VERIFYING)
    }

    fn abandon(&self) {
        self.replace(VERIFYING, 0);
    }
}
