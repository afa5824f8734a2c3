//! The continuous knapsack's critical item, found without sorting.
//!
//! The greedy in order of density takes items whole up to one, which it takes in part. That one's density is the multiplier at which the
//! relaxation is tight. [`super::candidates`], [`super::certified`] and [`super::continuous`] use it.

/// The density of the first item, densest first, that does not fit into `room` whole; by selection, O(n).
/// All costs are positive and their sum is above `room`.
pub(super) fn critical_density(keyed: &mut [(f64, f64)], room: f64) -> f64 {
    let mut rest = keyed;
    let mut room = room;
    loop {
        if rest.len() <= 32 {
            rest.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            for &mut (density, cost) in rest.iter_mut() {
                room -= cost;
                if room < 0.0 {
                    return density;
                }
            }
            // Rounding: the sum of the parts was a last bit below the sum of all.
            return rest.last().map_or(0.0, |last| last.0);
        }
        let middle = rest.len() / 2;
        let (denser, _, _) = rest.select_nth_unstable_by(middle, |a, b| b.0.total_cmp(&a.0));
        let cost: f64 = denser.iter().map(|k| k.1).sum();
        if cost > room {
            rest = &mut rest[..middle];
        } else {
            room -= cost;
            rest = &mut rest[middle..];
        }
    }
}
