//! Which names may have been meant by one that is not there: the one "did you mean" of the project.

/// Names looked at, however many there are.
const SEARCHED_MAX: usize = 50_000;

/// Pairs of characters compared at most: some tenths of a second.
const WORK_MAX: usize = 1 << 25;

/// Characters of a name that are compared.
const COMPARED_MAX: usize = 128;

/// Shorter names are the beginning of too much.
const PREFIX_MIN: usize = 3;

/// Bytes of the longest name that is worth telling.
const SHOWN_MAX: usize = 200;

/// Up to `count` names like `name`, the likest first: the same name with more or less before or after it, then what is spelled
/// alike, by the optimal string alignment distance.
pub(crate) fn similar<S: AsRef<str>>(
    name: &str,
    names: impl Iterator<Item = S>,
    count: usize,
) -> Vec<String> {
    let wanted: String = name.chars().take(COMPARED_MAX).collect();
    let most = wanted.chars().count().div_ceil(3).min(8);
    let mut work = 0_usize;
    let mut scored: Vec<(usize, String)> = Vec::new();
    for other in names.take(SEARCHED_MAX) {
        let other = other.as_ref();
        if other.len() > SHOWN_MAX || other.is_empty() {
            continue;
        }
        let score = if is_nested(name, other) {
            Some(0)
        } else {
            let (one, two) = differing(&wanted, other);
            work = work.saturating_add(one.len().saturating_mul(two.len()));
            if work > WORK_MAX {
                break;
            }
            distance(one, two, most).or_else(|| is_beginning(name, other).then_some(most))
        };
        let Some(score) = score else { continue };
        scored.push((score, other.to_owned()));
        // Of many no more are kept than are wanted.
        if scored.len() > count.saturating_mul(64).max(1024) {
            keep_best(&mut scored, count);
        }
    }
    keep_best(&mut scored, count);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// The best of them in order, each once.
fn keep_best(scored: &mut Vec<(usize, String)>, count: usize) {
    scored.sort_unstable_by(|one, two| (one.0, &one.1).cmp(&(two.0, &two.1)));
    scored.dedup();
    scored.truncate(count);
}

/// Whether one is the other with modules before it, or an entry of the wanted one.
fn is_nested(name: &str, other: &str) -> bool {
    other.strip_suffix(name).is_some_and(|head| head.ends_with('.'))
        || name.strip_suffix(other).is_some_and(|head| head.ends_with('.'))
        || other.strip_prefix(name).is_some_and(|tail| tail.starts_with('.'))
}

/// Whether one begins with the other.
fn is_beginning(name: &str, other: &str) -> bool {
    name.len().min(other.len()) >= PREFIX_MIN && (name.starts_with(other) || other.starts_with(name))
}

/// What is left of two names without what they begin and end with alike, which adds nothing to their distance.
fn differing<'a>(one: &'a str, two: &'a str) -> (&'a str, &'a str) {
    let alike = |(a, b): &(char, char)| a == b;
    let bytes = |(a, _): (char, char)| a.len_utf8();
    let prefix: usize = one.chars().zip(two.chars()).take_while(alike).map(bytes).sum();
    let (one, two) = (&one[prefix..], &two[prefix..]);
    let suffix: usize = one.chars().rev().zip(two.chars().rev()).take_while(alike).map(bytes).sum();
    (&one[..one.len() - suffix], &two[..two.len() - suffix])
}

/// The optimal string alignment distance of two texts, if it is at most `most`.
fn distance(one: &str, two: &str, most: usize) -> Option<usize> {
    if one.chars().count().abs_diff(two.chars().count()) > most {
        return None;
    }
    Some(strsim::osa_distance(one, two)).filter(|&distance| distance <= most)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_likest_names_come_first_and_once() {
        let names = ["model.weight", "bias", "weigth", "weights", "weights", "weight_norm"];
        assert_eq!(similar("weight", names.iter(), 9), ["model.weight", "weights", "weigth", "weight_norm"]);
        assert_eq!(similar("weight", names.iter(), 1), ["model.weight"]);
        assert_eq!(similar("encoder", ["enc", "lm_head"].iter(), 3), ["enc"]);
        assert_eq!(similar("en", ["encoder"].iter(), 3), Vec::<String>::new());
        assert_eq!(similar("", names.iter(), 3), Vec::<String>::new());
    }

    proptest::proptest! {
        #[test]
        fn what_two_names_share_adds_nothing(one in "[abé.]{0,12}", two in "[abé.]{0,12}") {
            let (a, b) = differing(&one, &two);
            proptest::prop_assert_eq!(strsim::osa_distance(a, b), strsim::osa_distance(&one, &two));
        }
    }

    #[test]
    fn two_million_names_take_no_longer_than_some() {
        let start = Instant::now();
        let names = (0..2_000_000).map(|number| format!("model.layers.{number}.self_attn.q_proj.weight"));
        let found = similar("model.layers.7.self_attn.q_porj.weight", names, 3);
        assert_eq!(found[0], "model.layers.7.self_attn.q_proj.weight");
        let long = (0..100_000).map(|number| format!("{}{number}", "x".repeat(190)));
        assert_eq!(similar(&"x".repeat(100_000), long, 3), Vec::<String>::new());
        let hidden = (0..2_000_000).map(|_| "y".repeat(10_000));
        assert_eq!(similar(&"x".repeat(10_000), hidden, 3), Vec::<String>::new());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}
