#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Remove the empty folders that `make install` made, and their empty parents.
#
#   packaging/folders.sh DESTDIR PREFIX FOLDER...
#
# Without DESTDIR, PREFIX itself and folders outside it stay. /usr/local keeps the folders that Debian makes in it, and
# /usr keeps all but those of tmesh.
set -eu
destdir=$1 prefix=$2
shift 2
for folder; do
	while [ -n "$folder" ]; do
		case $destdir:$folder in
		:/usr/local/bin | :/usr/local/sbin | :/usr/local/include | :/usr/local/lib | :/usr/local/share | :/usr/local/share/man) break ;;
		:/usr/local/* | :/usr/*/tmesh | :/usr/*/tmesh/*) ;;
		:/usr/*) break ;;
		esac
		case $destdir:$folder in
		:"$prefix"/* | ?*:/*) ;;
		*) break ;;
		esac
		[ ! -d "$destdir$folder" ] || rmdir "$destdir$folder" 2>/dev/null || break
		folder=${folder%/*}
	done
done
