//! Where the parameters of a group lie in the partitions of its ranks. Numbers only.
//!
//! Follows `deepspeed/runtime/zero/stage_1_and_2.py`, `bf16_optimizer.py` and `stage3.py`.

/// Elements of a rank's partition that are the next ones of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The rank.
    pub rank: usize,
    /// The first element in the rank's partition.
    pub start: u64,
    /// The number of elements, which is not 0.
    pub len: u64,
}

/// What is wrong with the partitions, and with whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The rank.
    pub rank: usize,
    /// A sentence.
    pub text: String,
}

/// How the group of stage 1 or 2 is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding<'a> {
    /// For each rank, the elements at its end that are padding; `None` where the files do not say.
    pub by_rank: Option<&'a [u64]>,
    /// Whether ranks have their padding in the file.
    pub is_stored: bool,
}

fn wrong<T>(rank: usize, text: String) -> Result<T, Wrong> {
    Err(Wrong { rank, text })
}

/// The runs of each parameter of a group of stage 1 or 2, and the size of a partition with its padding.
///
/// The parameters lie one after another, each with the padding that follows it, and then padding up to a multiple of the number of ranks,
/// which each have an equal part. A parameter is `(elements, padding)`; `lens` are the elements that each rank has. A partition without its
/// padding is one that holds elements up to the last parameter's.
pub fn flat(
    parameters: &[(u64, u64)],
    lens: &[u64],
    padding: Padding<'_>,
) -> Result<(Vec<Vec<Run>>, u64), Wrong> {
    let too_many = || Wrong { rank: 0, text: "the elements of a group do not fit 64 bits".to_owned() };
    let mut offsets = Vec::with_capacity(parameters.len());
    let mut used = 0_u64;
    for &(numel, after) in parameters {
        offsets.push((used, numel));
        used = used.checked_add(numel).and_then(|used| used.checked_add(after)).ok_or_else(too_many)?;
    }
    let world = u64::try_from(lens.len()).unwrap_or(u64::MAX);
    let Some(last) = lens.len().checked_sub(1) else {
        return wrong(0, "a group has no ranks".to_owned());
    };
    let first_padding = match padding.by_rank {
        Some(paddings) if paddings.len() == lens.len() => paddings.first().copied().unwrap_or(0),
        Some(_) => return wrong(0, "the paddings are not as many as the ranks".to_owned()),
        None => 0,
    };
    let first = lens.first().copied().unwrap_or(0);
    // The only rank of BF16_Optimizer has its padding in the file.
    let size = match padding.is_stored {
        true => first,
        false => first.checked_add(first_padding).ok_or_else(too_many)?,
    };
    let padded = size.checked_mul(world).ok_or_else(too_many)?;
    let Some(slack) = padded.checked_sub(used) else {
        let text = format!("the ranks have room for {padded} element(s), the parameters are {used}");
        return wrong(last, text);
    };
    if slack >= world.saturating_mul(2) {
        let text = format!("the ranks have room for {padded} element(s), the parameters are only {used}");
        return wrong(last, text);
    }
    let mut begin = 0_u64;
    let (mut all_cut, mut all_cut_last) = (true, true);
    for (rank, &len) in lens.iter().enumerate() {
        let own = used.saturating_sub(begin).min(size);
        let stated = padding.by_rank.and_then(|paddings| paddings.get(rank).copied());
        // Some versions let the last rank state all of the padding, also what other ranks have.
        let of_last = if rank == last { slack } else { 0 };
        let after_last = match size.checked_sub(of_last) {
            Some(rest) => rest,
            // Python counts a negative end from the end.
            None => size.saturating_sub(of_last.saturating_sub(size)),
        };
        let is_cut = len == own && stated.is_none_or(|stated| stated == size.saturating_sub(own));
        let is_cut_last = len == after_last && stated.is_none_or(|stated| stated == of_last);
        let is_whole = len == size && stated.is_none_or(|stated| stated == of_last);
        // All ranks are of one form.
        (all_cut, all_cut_last) = (all_cut && is_cut, all_cut_last && is_cut_last);
        let is_right = if padding.is_stored { is_whole } else { all_cut || all_cut_last };
        if !is_right || len < own {
            let stated = stated.map_or(String::new(), |stated| format!(" and states {stated} of padding"));
            let text = format!(
                "a rank has {len} element(s){stated}, where {own} of {size} belong to parameters of {used}"
            );
            return wrong(rank, text);
        }
        begin = begin.saturating_add(size);
    }
    Ok((offsets.iter().map(|&(offset, numel)| crossing(offset, numel, size)).collect(), size))
}

/// The runs of elements `offset` to `offset + numel` in partitions of this size.
fn crossing(offset: u64, numel: u64, size: u64) -> Vec<Run> {
    let (mut at, end) = (offset, offset.saturating_add(numel));
    let mut runs = Vec::new();
    while at < end
        && let (Some(rank), Some(start)) = (at.checked_div(size), at.checked_rem(size))
    {
        let len = size.saturating_sub(start).min(end.saturating_sub(at));
        runs.push(Run { rank: usize::try_from(rank).unwrap_or(usize::MAX), start, len });
        at = at.saturating_add(len);
    }
    runs
}

/// The runs of each parameter of a sub-group of stage 3, where every rank has an equal part of each parameter, the last ones padded.
pub fn sharded(parameters: &[u64], lens: &[u64]) -> Result<Vec<Vec<Run>>, Wrong> {
    let world = u64::try_from(lens.len()).unwrap_or(u64::MAX);
    let mut offset = 0_u64;
    let mut all = Vec::with_capacity(parameters.len());
    for &numel in parameters {
        let Some(part) = numel.checked_next_multiple_of(world).and_then(|padded| padded.checked_div(world))
        else {
            return wrong(
                0,
                "the elements of a parameter do not fit 64 bits, or there are no ranks".to_owned(),
            );
        };
        let mut runs = Vec::new();
        let mut left = numel;
        for rank in 0..lens.len() {
            let len = left.min(part);
            if len == 0 {
                break;
            }
            runs.push(Run { rank, start: offset, len });
            left = left.saturating_sub(len);
        }
        all.push(runs);
        let Some(next) = offset.checked_add(part) else {
            return wrong(0, "the elements of a group do not fit 64 bits".to_owned());
        };
        offset = next;
    }
    match lens.iter().position(|&len| len != offset) {
        None => Ok(all),
        Some(rank) => {
            let len = lens.get(rank).copied().unwrap_or(0);
            wrong(rank, format!("a rank has {len} element(s) of a group, the parameters need {offset}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSTATED: Padding<'_> = Padding { by_rank: None, is_stored: false };

    #[test]
    fn a_flat_group_is_cut_where_its_ranks_end() {
        let paddings = Padding { by_rank: Some(&[0, 1]), is_stored: false };
        let (runs, size) = flat(&[(2, 0), (5, 0)], &[4, 3], paddings).unwrap();
        assert_eq!(size, 4);
        let run = |rank, start, len| Run { rank, start, len };
        assert_eq!(runs, [vec![run(0, 0, 2)], vec![run(0, 2, 2), run(1, 0, 3)]]);
        for lens in [[4, 4], [4, 2], [3, 4], [5, 3], [3, 3]] {
            assert!(flat(&[(2, 0), (5, 0)], &lens, paddings).is_err(), "{lens:?}");
        }
        assert!(flat(&[(1, 0)], &[2, 0], Padding { by_rank: Some(&[0, 2]), is_stored: false }).is_err());
        assert!(flat(&[(1, 0)], &[1, 0], Padding { by_rank: Some(&[1, 2]), is_stored: false }).is_ok());
        // The last rank alone states padding, of two ranks.
        assert!(flat(&[(1, 0)], &[2, 1], Padding { by_rank: Some(&[0, 3]), is_stored: false }).is_ok());
        assert!(flat(&[(1, 0)], &[2, 2], Padding { by_rank: Some(&[0, 3]), is_stored: true }).is_ok());
        assert!(flat(&[(1, 0)], &[4, 4], Padding { by_rank: Some(&[0, 7]), is_stored: true }).is_err());
        assert!(flat(&[(u64::MAX, 1)], &[1], UNSTATED).is_err());
        assert!(flat(&[], &[], UNSTATED).is_err());
    }

    #[test]
    fn a_sharded_group_has_a_part_of_each_parameter_in_every_rank() {
        let run = |rank, start, len| Run { rank, start, len };
        let runs = sharded(&[5, 1, 0], &[3, 3]).err();
        assert!(runs.is_some());
        let runs = sharded(&[5, 1, 0], &[4, 4]).unwrap();
        assert_eq!(runs, [vec![run(0, 0, 3), run(1, 0, 2)], vec![run(0, 3, 1)], vec![]]);
        assert_eq!(sharded(&[5], &[3, 2]).unwrap_err().rank, 1);
        assert!(sharded(&[u64::MAX], &[1, 1]).is_err());
        assert!(sharded(&[1], &[]).is_err());
    }
}
