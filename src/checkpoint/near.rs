//! Names like one that is not there.

/// Names looked at, however many there are.
const LOOKED_AT: usize = 50_000;

/// Up to three names like `name`: nested or bare forms of it first, then what is spelled alike.
pub(super) fn near<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let nested = |other: &str| {
        other.strip_suffix(name).is_some_and(|head| head.ends_with('.'))
            || name.strip_suffix(other).is_some_and(|head| head.ends_with('.'))
            || other.strip_prefix(name).is_some_and(|tail| tail.starts_with('.'))
    };
    let (wanted, most) = (head(name).collect::<Vec<_>>(), name.len().div_ceil(3).min(8));
    let mut other_head = Vec::new();
    let mut score = |other: &str| {
        if nested(other) {
            return Some(0);
        }
        other_head.clear();
        other_head.extend(head(other));
        distance(&wanted, &other_head, most)
    };
    let mut scored: Vec<(usize, &str)> =
        names.take(LOOKED_AT).filter_map(|other| Some((score(other)?, other))).collect();
    scored.sort_unstable();
    scored.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}

/// The edit distance of two short texts, if it is at most `most`. Only a band around the diagonal can be that near, so a
/// miss among thousands of names costs little.
fn distance(one: &[char], two: &[char], most: usize) -> Option<usize> {
    let far = most + 1;
    if one.len().abs_diff(two.len()) > most {
        return None;
    }
    let mut row: Vec<usize> = (0..=two.len()).map(|cost| cost.min(far)).collect();
    for (i, a) in one.iter().enumerate() {
        let (first, last) = (i.saturating_sub(most), (i + most + 1).min(two.len()));
        let mut diagonal = row[first];
        row[first] = if first == 0 { (i + 1).min(far) } else { far };
        let mut least = row[first];
        for j in first..last {
            let change = diagonal + usize::from(*a != two[j]);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1).min(far);
            least = least.min(row[j + 1]);
        }
        if least == far {
            return None;
        }
    }
    row.last().copied().filter(|&cost| cost <= most)
}

/// The first characters of a name.
fn head(name: &str) -> impl Iterator<Item = char> {
    name.chars().take(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(one: &str, two: &str, most: usize) -> Option<usize> {
        distance(&head(one).collect::<Vec<_>>(), &head(two).collect::<Vec<_>>(), most)
    }

    #[test]
    fn distances_are_bounded() {
        assert_eq!(of("weight", "weights", 2), Some(1));
        assert_eq!(of("weight", "bias", 2), None);
        assert_eq!(of("abc", "abc", 0), Some(0));
        assert_eq!(of("", "ab", 2), Some(2));
    }

    /// The whole table, by the definition.
    fn plain(one: &[char], two: &[char]) -> usize {
        let mut rows = vec![(0..=two.len()).collect::<Vec<_>>()];
        for (i, a) in one.iter().enumerate() {
            let mut row = vec![i + 1];
            for (j, b) in two.iter().enumerate() {
                row.push((rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1));
            }
            rows.push(row);
        }
        rows[one.len()][two.len()]
    }

    proptest::proptest! {
        #[test]
        fn the_band_finds_every_near_distance(one in "[ab.]{0,12}", two in "[ab.]{0,12}", most in 0_usize..9) {
            let (a, b): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
            let whole = Some(plain(&a, &b)).filter(|&cost| cost <= most);
            proptest::prop_assert_eq!(distance(&a, &b, most), whole);
        }
    }
}
