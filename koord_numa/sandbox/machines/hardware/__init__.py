"""Machines: their descriptions, sysfs trees and published topologies."""
