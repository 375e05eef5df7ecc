// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of completion queues.

use super::*;

#[kernel::macros::kunit_tests(farblk_rdma_cq)]
mod tests {
    use super::*;

    #[test]
    fn has_at_least_one_entry_and_no_more_than_the_device_can() -> Result {
        with_device(|device, _| {
            let max = device.limits().max_cqe;
            let alloc = |entries| AnyCq::alloc(device, entries, 0, PollContext::Workqueue);
            check!(alloc(0).err() == Some(EINVAL));
            check!(alloc(max + 1).err() == Some(EINVAL));
            check!(alloc(1).is_ok());
            Ok(())
        })
    }

    #[test]
    fn takes_any_vector() -> Result {
        with_device(|device, _| {
            for vector in [0, device.limits().num_comp_vectors, u32::MAX] {
                check!(AnyCq::alloc(device, 1, vector, PollContext::Softirq).is_ok());
            }
            Ok(())
        })
    }

    #[test]
    fn has_each_entry_reserved_once() -> Result {
        with_device(|device, _| {
            let cq = AnyCq::alloc(device, 10, 0, PollContext::Workqueue)?;
            let first = AnyCq::reserve(&cq, 4)?;
            let second = AnyCq::reserve(&cq, 6)?;
            check!(AnyCq::reserve(&cq, 1).err() == Some(ENOSPC));
            check!(AnyCq::reserve(&cq, u32::MAX).err() == Some(ENOSPC));
            drop(first);
            check!(AnyCq::reserve(&cq, 5).err() == Some(ENOSPC));
            let third = AnyCq::reserve(&cq, 4)?;
            check!(AnyCq::reserve(&cq, 1).err() == Some(ENOSPC));
            drop((second, third));
            check!(AnyCq::reserve(&cq, 10).is_ok());
            check!(last(cq));
            Ok(())
        })
    }
}
