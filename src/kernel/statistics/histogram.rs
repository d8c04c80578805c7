//! Numbers counted in bins of equal width.

/// Numbers counted in bins of equal width.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Histogram {
    /// The lower edge of the first bin.
    pub min: f64,
    /// The upper edge of the last bin, which contains it.
    pub max: f64,
    /// The numbers in each bin. A bin contains its lower edge.
    pub counts: Vec<u64>,
}

/// A histogram that is being filled. The edges are those of `numpy.histogram`.
#[derive(Clone, Debug)]
pub(super) struct Bins {
    min: f64,
    max: f64,
    /// The lower edges of all bins, and the upper edge of the last.
    edges: Vec<f64>,
    counts: Vec<u64>,
}

impl Bins {
    /// Empty bins over a range; a range of one number is widened by half on each side.
    pub(super) fn new(min: f64, max: f64, bins: usize) -> Bins {
        let (min, max) = if min == max { (min - 0.5, max + 0.5) } else { (min, max) };
        let bins = bins.max(1);
        // Halves: the difference of the largest numbers is infinite.
        let step = 2.0 * ((max / 2.0 - min / 2.0) / bins as f64);
        let mut edges: Vec<f64> = (0..=bins).map(|at| min + at as f64 * step).collect();
        if let Some(last) = edges.last_mut() {
            *last = max;
        }
        Bins { min, max, edges, counts: vec![0; bins] }
    }

    /// Counts a number `times` times. One outside the range is not counted.
    #[inline]
    pub(super) fn add(&mut self, number: f64, times: u64) {
        if !(number >= self.min && number <= self.max) {
            return;
        }
        let last = self.counts.len() - 1;
        let share = (number / 2.0 - self.min / 2.0) / (self.max / 2.0 - self.min / 2.0);
        let mut at = ((share * self.counts.len() as f64) as usize).min(last);
        // The product is rounded: the edges decide.
        if number < self.edges[at] {
            at = at.saturating_sub(1);
        } else if at < last && number >= self.edges[at + 1] {
            at += 1;
        }
        self.counts[at] += times;
    }

    pub(super) fn merge(&mut self, other: &Bins) {
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
    }

    pub(super) fn finish(self) -> Histogram {
        Histogram { min: self.min, max: self.max, counts: self.counts }
    }
}
