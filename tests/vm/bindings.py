# SPDX-License-Identifier: MIT
def disks(): return ()
