// SPDX-License-Identifier: GPL-2.0

//! Statuses of the wire and of the block layer.

use crate::block::BlkError::{self, *};
use crate::block::BlkResult;
use crate::proto::Status;

#[test]
fn what_the_client_sees_of_the_backing() {
    let carried = |error: BlkError| BlkResult::from(Status::from(Err(error)));
    for error in [
        NotSupported,
        Timeout,
        NoSpace,
        Target,
        ReservationConflict,
        Medium,
        Protection,
        Resource,
        IoError,
        Offline,
        Invalid,
    ] {
        assert_eq!(carried(error), Err(error));
    }
    // These ask the server to try again; the client must not take them so.
    for error in [Again, DevResource] {
        assert_eq!(carried(error), Err(Resource));
    }
    assert_eq!(carried(DurationLimit), Err(Timeout));
    // This would be sent again, on another path of the client.
    assert_eq!(carried(Transport), Err(IoError));
    assert_eq!(BlkResult::from(Status::from(Ok(()))), Ok(()));
}

#[test]
fn only_ok_is_a_success() {
    for status in Status::ALL {
        let result = BlkResult::from(status);
        assert_eq!(result.is_ok(), status == Status::Ok);
        let back = match status {
            Status::OutOfRange | Status::Transport => Status::IoError,
            Status::ReadOnly => Status::Target,
            other => other,
        };
        assert_eq!(Status::from(result), back);
    }
}
