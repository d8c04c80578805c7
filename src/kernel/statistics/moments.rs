//! Count, mean and squared distances from the mean, which can be merged.

/// Count, mean and squared distances of finite numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub(super) count: u64,
    pub(super) mean: f64,
    /// The sum of the squared distances from the mean.
    pub(super) squares: f64,
}

impl Moments {
    /// Those of both (Chan, Golub and LeVeque).
    pub(super) fn merged(self, other: Moments) -> Moments {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let count = self.count + other.count;
        let (own, others) = (self.count as f64, other.count as f64);
        let share = others / (own + others);
        let distance = other.mean - self.mean;
        let mean = match distance.is_finite() {
            true => self.mean + distance * share,
            false => self.mean * (own / (own + others)) + other.mean * share,
        };
        let squares = self.squares + other.squares + distance * distance * own * share;
        Moments { count, mean, squares }
    }

    /// Mean and standard deviation; `None` of no numbers.
    pub(super) fn finish(self) -> (Option<f64>, Option<f64>) {
        match self.count {
            0 => (None, None),
            count => (Some(self.mean), Some((self.squares / count as f64).sqrt())),
        }
    }
}
