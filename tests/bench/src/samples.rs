//! Figures that do not depend on luck: all subjects take turns, round by round, and the median of the rounds counts.

use anyhow::Result;

/// The fewest rounds that a figure may come from.
pub const LEAST_ROUNDS: usize = 5;

/// One figure of each round.
#[derive(Clone, Debug)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// One figure taken from each round's result.
    ///
    /// # Panics
    /// With fewer than [`LEAST_ROUNDS`] rounds.
    pub fn of<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> Samples {
        assert!(rounds.len() >= LEAST_ROUNDS, "{} rounds", rounds.len());
        Samples(rounds.iter().map(figure).collect())
    }

    /// The median.
    pub fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The median of the rounds' ratios: what disturbs a whole round disturbs both of its figures.
    ///
    /// # Panics
    /// If the two do not come from the same rounds.
    pub fn ratio(&self, reference: &Samples) -> f64 {
        assert_eq!(self.0.len(), reference.0.len(), "rounds");
        let ratios: Vec<f64> = self
            .0
            .iter()
            .zip(&reference.0)
            .map(|(a, b)| a / b)
            .collect();
        median(&ratios)
    }
}

/// The median: the middle one, or what lies between the two in the middle. `values` must not be empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    } else {
        sorted[middle]
    }
}

/// The value at a quantile from 0 to 1 of values in ascending order, which must not be empty.
pub fn quantile(sorted: &[u64], q: f64) -> u64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Measures every subject once a round, one after the other, and every other round in the opposite order, so that none always
/// comes after the same one. What each subject gave, by subject and round. The first error ends it.
pub fn interleaved<T>(
    rounds: usize,
    subjects: &mut [Box<dyn FnMut() -> Result<T> + '_>],
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for n in order {
            results[n].push(subjects[n]()?);
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let sorted: Vec<u64> = (1..=1000).collect();
        let at = [0.0, 0.5, 0.99, 0.999, 1.0].map(|q| quantile(&sorted, q));
        assert_eq!(at, [1, 500, 990, 999, 1000]);
        assert_eq!(quantile(&[7], 0.999), 7);
    }

    #[test]
    fn a_ratio_is_that_of_the_rounds() {
        // A machine that is ten times slower in some rounds.
        let ours = Samples::of(&[90.0, 9.0, 90.0, 9.0, 9.0], |v| *v);
        let reference = Samples::of(&[100.0, 10.0, 100.0, 10.0, 10.0], |v| *v);
        assert_eq!(ours.median(), 9.0);
        assert_eq!(ours.ratio(&reference), 0.9);
    }

    #[test]
    fn subjects_take_turns() {
        let order = RefCell::new(String::new());
        let subject = |name: char| -> Box<dyn FnMut() -> Result<char>> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                Ok(name)
            })
        };
        let results = interleaved(3, &mut [subject('a'), subject('b')]).unwrap();
        assert_eq!(results, [vec!['a'; 3], vec!['b'; 3]]);
        assert_eq!(order.into_inner(), "abbaab");
    }
}
