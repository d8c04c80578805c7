//! "Did you mean": the names most similar to one that was not found.

/// The most names that are compared.
const NAMES_MAX: usize = 50_000;

/// The most pairs of characters that are compared: some tenths of a second.
const CHARACTER_PAIRS_MAX: usize = 1 << 25;

/// Characters of a name that are compared.
const COMPARED_CHARACTERS: usize = 128;

/// The shortest name that counts as a prefix: shorter ones begin too many names.
const PREFIX_MIN_BYTES: usize = 3;

/// The longest name that is suggested.
const SUGGESTION_MAX_BYTES: usize = 200;

/// Up to `count` names similar to `name`, the most similar first: names that differ only by a module path at an end, then names at
/// a small optimal string alignment distance, then prefixes.
pub(crate) fn similar<S: AsRef<str>>(
    name: &str,
    names: impl Iterator<Item = S>,
    count: usize,
) -> Vec<String> {
    let compared: String = name.chars().take(COMPARED_CHARACTERS).collect();
    let max_distance = compared.chars().count().div_ceil(3).min(8);
    let mut work = 0_usize;
    let mut scored: Vec<(usize, String)> = Vec::new();
    for other in names.take(NAMES_MAX) {
        let other = other.as_ref();
        if other.len() > SUGGESTION_MAX_BYTES || other.is_empty() {
            continue;
        }
        let score = if is_nested(name, other) {
            Some(0)
        } else {
            let (name_part, other_part) = trim_common(&compared, other);
            work = work.saturating_add(name_part.len().saturating_mul(other_part.len()));
            if work > CHARACTER_PAIRS_MAX {
                break;
            }
            distance(name_part, other_part, max_distance)
                .or_else(|| is_prefix(name, other).then_some(max_distance))
        };
        let Some(score) = score else { continue };
        scored.push((score, other.to_owned()));
        // Bounds the memory where many names are similar.
        if scored.len() > count.saturating_mul(64).max(1024) {
            keep_best(&mut scored, count);
        }
    }
    keep_best(&mut scored, count);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// Sorts by score, removes duplicates, and keeps the best `count`.
fn keep_best(scored: &mut Vec<(usize, String)>, count: usize) {
    scored.sort_unstable_by(|one, two| (one.0, &one.1).cmp(&(two.0, &two.1)));
    scored.dedup();
    scored.truncate(count);
}

/// Whether one name is the other with a module path before it, or `other` lies below `name`.
fn is_nested(name: &str, other: &str) -> bool {
    other.strip_suffix(name).is_some_and(|head| head.ends_with('.'))
        || name.strip_suffix(other).is_some_and(|head| head.ends_with('.'))
        || other.strip_prefix(name).is_some_and(|tail| tail.starts_with('.'))
}

/// Whether one name is a prefix of the other.
fn is_prefix(name: &str, other: &str) -> bool {
    name.len().min(other.len()) >= PREFIX_MIN_BYTES && (name.starts_with(other) || other.starts_with(name))
}

/// Two names without their common prefix and suffix, which do not change their distance.
fn trim_common<'a>(one: &'a str, two: &'a str) -> (&'a str, &'a str) {
    let alike = |(a, b): &(char, char)| a == b;
    let bytes = |(a, _): (char, char)| a.len_utf8();
    let prefix: usize = one.chars().zip(two.chars()).take_while(alike).map(bytes).sum();
    let (one, two) = (&one[prefix..], &two[prefix..]);
    let suffix: usize = one.chars().rev().zip(two.chars().rev()).take_while(alike).map(bytes).sum();
    (&one[..one.len() - suffix], &two[..two.len() - suffix])
}

/// The optimal string alignment distance of two texts, if it is at most `max`.
fn distance(one: &str, two: &str, max: usize) -> Option<usize> {
    if one.chars().count().abs_diff(two.chars().count()) > max {
        return None;
    }
    Some(strsim::osa_distance(one, two)).filter(|&distance| distance <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_names_come_first_and_once() {
        let names = ["model.weight", "bias", "weigth", "weights", "weights", "weight_norm"];
        assert_eq!(similar("weight", names.iter(), 9), ["model.weight", "weights", "weigth", "weight_norm"]);
        assert_eq!(similar("weight", names.iter(), 1), ["model.weight"]);
        assert_eq!(similar("encoder", ["enc", "lm_head"].iter(), 3), ["enc"]);
        assert_eq!(similar("en", ["encoder"].iter(), 3), Vec::<String>::new());
        assert_eq!(similar("", names.iter(), 3), Vec::<String>::new());
    }

    proptest::proptest! {
        #[test]
        fn a_common_prefix_and_suffix_do_not_change_the_distance(one in "[abé.]{0,12}", two in "[abé.]{0,12}") {
            let (a, b) = trim_common(&one, &two);
            proptest::prop_assert_eq!(strsim::osa_distance(a, b), strsim::osa_distance(&one, &two));
        }
    }

    #[test]
    fn two_million_names_are_searched_in_bounded_time() {
        let taken = std::cell::Cell::new(0);
        let names =
            |name: fn(usize) -> String| (0..2_000_000).map(name).inspect(|_| taken.set(taken.get() + 1));
        let found = similar(
            "model.layers.7.self_attn.q_porj.weight",
            names(|number| format!("model.layers.{number}.self_attn.q_proj.weight")),
            3,
        );
        assert_eq!(found[0], "model.layers.7.self_attn.q_proj.weight");
        assert_eq!(taken.replace(0), NAMES_MAX);
        // Each pair costs as much as a pair can.
        let long = names(|number| format!("{}{number}", "y".repeat(190)));
        assert_eq!(similar(&"x".repeat(100_000), long, 3), Vec::<String>::new());
        assert!(taken.replace(0) <= CHARACTER_PAIRS_MAX / (COMPARED_CHARACTERS * 190) + 1);
        let long = names(|number| format!("{}{number}", "x".repeat(190)));
        assert_eq!(similar(&"x".repeat(100_000), long, 3), Vec::<String>::new());
        assert_eq!(taken.replace(0), NAMES_MAX);
        let hidden = names(|_| "y".repeat(10_000));
        assert_eq!(similar(&"x".repeat(10_000), hidden, 3), Vec::<String>::new());
        assert_eq!(taken.get(), NAMES_MAX);
    }
}
