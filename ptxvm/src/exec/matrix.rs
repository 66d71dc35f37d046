//! `ldmatrix`: 8x8 matrices of 16-bit elements from shared memory, spread over the warp.

use super::access::{Told, cells};
use super::step::{Now, Step, Stepped};
use super::warp::Local;
use super::words::{Cells, load_element};
use crate::memory::SHARED_WINDOW;
use crate::observe::{AccessKind, Watcher};
use crate::program::{Address, Order};
use crate::registers::{LANES, Narrow};
use crate::types::Space;

/// Rows of a matrix.
const ROWS: u32 = 8;
/// Bytes of a row.
const ROW_BYTES: u32 = 16;

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// Lanes 8m to 8m+7 give the addresses of the rows of matrix m. Of each matrix a lane receives row lane/4, columns
    /// 2(lane%4) and the next; or with `.trans` the same of the transposed matrix.
    pub(super) fn load_matrix(&mut self, now: Now<'a>, address: &Address, count: u8, transposed: bool) -> Stepped<()> {
        let matrices = u32::from(count).min(4);
        let givers = now.mask & u32::MAX.checked_shr(32 - ROWS * matrices).unwrap_or(0);
        // Matrices lie in shared memory, so where the frame is does not matter.
        let mut target = self.target_of(Local::default(), address);
        if target.space == Space::Generic {
            target.space = Space::Shared;
            target.addresses = target.addresses.map(|address| address.wrapping_sub(SHARED_WINDOW));
        }
        let (offsets, _) = self.in_window(now, &target, givers, (ROW_BYTES, false), self.block.shared_bytes)?;
        if O::ACTIVE {
            let told = Told { kind: AccessKind::Read, bytes: ROW_BYTES, order: Order::Weak, values: None };
            self.tell(now, &target, givers, told);
        }
        let words = Cells(cells(&mut self.block.shared));
        let element = |row: u32, column: u32| load_element(&words, 0, offsets[row as usize] + column * 2, 2) as u32;
        for matrix in 0..matrices {
            let out: Narrow = std::array::from_fn(|lane| {
                let (high, low) = (lane as u32 / 4, lane as u32 % 4 * 2);
                let first = matrix * ROWS;
                match transposed {
                    _ if givers == 0 => 0,
                    false => element(first + high, low) | element(first + high, low + 1) << 16,
                    true => element(first + low, high) | element(first + low + 1, high) << 16,
                }
            });
            self.warp.registers.set_narrow(now.instruction.operands[matrix as usize], now.mask, &out);
        }
        Ok(())
    }
}

const _: () = assert!(ROWS as usize * 4 == LANES);
