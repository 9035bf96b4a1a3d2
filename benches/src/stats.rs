//! Medians and spreads.

/// Returns the value at `share` (0 to 1) of the sorted values, with linear interpolation between neighbours.
///
/// The values must not be empty.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// Median and spread.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// Spread: (p90 − p10) / median; 0 if the median is 0.
    pub spread: f64,
}

/// Returns the median and the spread of the values, or `None` if there are no values.
pub fn summary(values: &[f64]) -> Option<Summary> {
    if values.is_empty() {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = quantile(&sorted, 0.5);
    let width = quantile(&sorted, 0.9) - quantile(&sorted, 0.1);
    Some(Summary { median, spread: if median == 0.0 { 0.0 } else { width / median } })
}

/// Returns the median of the values, or 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    summary(values).map_or(0.0, |summary| summary.median)
}

/// Returns the mean of the values, or 0 if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn timing_summary_has_interpolated_median_and_spread() {
        assert!(summary(&[]).is_none());
        let odd = summary(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd.median, 2.0);
        assert!((odd.spread - 0.8).abs() < 1e-9);
        assert_eq!(summary(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(summary(&[0.0, 0.0]).unwrap().spread, 0.0);
    }
}
