# SPDX-License-Identifier: MIT
useradd -m -s /bin/bash ada
useradd -m -s /bin/bash bob
dpkg -i /tmesh/own/*.deb
systemctl daemon-reload
