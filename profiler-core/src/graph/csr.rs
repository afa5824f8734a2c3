//! Lists of numbers by number, in two vectors (compressed sparse rows).

/// For each of `n` numbers a list of items, in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Csr<T> {
    /// Where each list begins in `items`, and where the last one ends.
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T> Default for Csr<T> {
    fn default() -> Self {
        Self { starts: Vec::new(), items: Vec::new() }
    }
}

impl<T: Copy> Csr<T> {
    /// The lists of `n` numbers from pairs (number, item); pairs of numbers beyond are left out.
    pub fn new(n: usize, pairs: &[(u32, T)]) -> Self {
        let mut starts = vec![0_u32; n + 1];
        let inside = |from: u32| (from as usize) < n;
        for (from, _) in pairs.iter().filter(|(from, _)| inside(*from)) {
            starts[*from as usize + 1] += 1;
        }
        for i in 0..n {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; starts[n] as usize];
        for (at, (from, _)) in pairs.iter().enumerate().filter(|(_, (from, _))| inside(*from)) {
            let slot = &mut next[*from as usize];
            order[*slot as usize] = at as u32; // OK because there are as many as u32 counts
            *slot += 1;
        }
        let items = order.into_iter().map(|at| pairs[at as usize].1).collect();
        Self { starts, items }
    }

    /// The list of a number; empty for one beyond.
    pub fn of(&self, number: u32) -> &[T] {
        let at = number as usize;
        let range = self.starts.get(at).zip(self.starts.get(at + 1));
        range.map_or(&[], |(from, to)| &self.items[*from as usize..*to as usize])
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, number: u32) -> &mut [T] {
        let at = number as usize;
        match self.starts.get(at).zip(self.starts.get(at + 1)) {
            Some((from, to)) => &mut self.items[*from as usize..*to as usize],
            None => &mut [],
        }
    }

    /// All items, by number.
    pub fn items(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_numbers_beyond_have_none() {
        let csr = Csr::new(3, &[(2, 'a'), (0, 'b'), (9, 'x'), (2, 'c')]);
        assert_eq!([csr.of(0), csr.of(1), csr.of(2), csr.of(3)], [&['b'][..], &[], &['a', 'c'], &[]]);
        assert_eq!(csr.items(), ['b', 'a', 'c']);
        assert!(Csr::<u8>::new(0, &[]).of(0).is_empty() && Csr::<u8>::default().of(7).is_empty());
    }
}
