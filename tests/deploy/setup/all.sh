# SPDX-License-Identifier: MIT
useradd -m -s /bin/bash ada
useradd -m -s /bin/bash bob
