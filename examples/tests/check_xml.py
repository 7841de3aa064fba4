# SPDX-License-Identifier: MIT
# Fails when the file is not well-formed: python3 check_xml.py FILE
import sys
import xml.etree.ElementTree

xml.etree.ElementTree.parse(sys.argv[1])
